"""The program of a process that runs attempts: `python -m holdfast.testing.crash.worker_main`.

It reads a `CrashTestConfig` and then one `TrialProcess` after another, as lines of JSON. It imports the agent once and
forks a process for each attempt, which is faster than a new interpreter. If the import has started threads, a fork is
unsafe: then each attempt gets a new interpreter.
"""

import asyncio
import contextlib
import faulthandler
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast.testing.crash.trial_process import (
    AttemptResult,
    CrashTestConfig,
    TrialProcess,
    execute_attempt,
    import_object,
)

#: Argument that makes the program run one attempt in its own process.
_NEW_INTERPRETER = "--alone"


def main() -> None:
    lines = iter(sys.stdin.buffer)
    config_line = next(lines)
    config = msgspec.json.decode(config_line, type=CrashTestConfig)
    if _NEW_INTERPRETER in sys.argv:
        _run_attempt(msgspec.json.decode(next(lines), type=TrialProcess), config)
        return
    warm = False
    for line in lines:
        attempt = msgspec.json.decode(line, type=TrialProcess)
        if not warm:
            _warm_up(attempt, config)
            warm = True
        code = (
            _run_in_new_interpreter(config_line, line, attempt)
            if _count_threads() > 1
            else _run_forked(attempt, config)
        )
        sys.stdout.buffer.write(msgspec.json.encode(AttemptResult(exit_code=code)) + b"\n")
        sys.stdout.buffer.flush()


def _warm_up(attempt: TrialProcess, config: CrashTestConfig) -> None:
    """Import what the attempts need. The store is constructed for its imports and never opened."""
    with contextlib.suppress(Exception):  # each attempt reports the error in its own log
        import_object(config.agent)
        import_object(config.open_store)(attempt.url)


def _run_forked(attempt: TrialProcess, config: CrashTestConfig) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        with _open_log(attempt.log_path) as log, open(os.devnull, "rb") as null:
            os.dup2(null.fileno(), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
        _run_attempt(attempt, config)
        code = 0
    except BaseException:  # of any kind: the forked child must not return into the loop of `main`
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_in_new_interpreter(config: bytes, attempt: bytes, decoded: TrialProcess) -> int:
    with _open_log(decoded.log_path) as log:
        program = [sys.executable, "-m", "holdfast.testing.crash.worker_main", _NEW_INTERPRETER]
        return subprocess.run(program, input=config + attempt, stdout=log, stderr=log, check=False).returncode


def _run_attempt(attempt: TrialProcess, config: CrashTestConfig) -> None:
    faulthandler.dump_traceback_later(config.timeout + 5, exit=True)  # in case the event loop itself is blocked
    asyncio.run(_run_with_timeout(attempt, config))
    faulthandler.cancel_dump_traceback_later()


async def _run_with_timeout(attempt: TrialProcess, config: CrashTestConfig) -> None:
    execution = asyncio.ensure_future(execute_attempt(attempt, config))
    done, _ = await asyncio.wait([execution], timeout=config.timeout)
    if not done:
        print(f"this attempt hangs: it has taken {config.timeout} seconds", file=sys.stderr)
        for task in asyncio.all_tasks():
            print("".join(traceback.format_list(_get_stack(task))), file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
    execution.result()


def _get_stack(task: "asyncio.Task[Any]") -> traceback.StackSummary:
    """Return the stack of a task down to the innermost coroutine; `Task.get_stack` stops at the outermost."""
    frames = []
    coroutine: Any = task.get_coro()
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        frames.append((frame, frame.f_lineno))
        coroutine = coroutine.cr_await
    return traceback.StackSummary.extract(iter(frames))


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[int]:
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield log
    finally:
        os.close(log)


def _count_threads() -> int:
    """Count the threads of this process, with /proc also those that Python did not start."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


if __name__ == "__main__":
    main()
