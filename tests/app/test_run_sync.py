"""`run_sync` in a real process: Ctrl-C, SIGTERM, the next start, and an event loop that runs already."""

import asyncio
import re
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

from holdfast import Agent, App, Reply
from holdfast.errors import DefinitionError, RunConflict

#: Sends itself the signals of its arguments within step 2, the next one when the one before is handled.
PROGRAM = textwrap.dedent(
    """
    import asyncio, os, sys
    from holdfast import Agent, App, Reply, ToolCall, tool

    run_id, *signals = sys.argv[1:]

    @tool(effect="pure")
    async def work(number: int) -> int:
        print(number, flush=True)
        for each in signals if number == 2 else ():
            os.kill(os.getpid(), int(each))
            while not app._executor.draining:
                await asyncio.sleep(0)
        return number

    async def model(messages, tools):
        done = sum(isinstance(message, Reply) for message in messages)
        calls = [ToolCall(id=str(done), name="work", arguments={"number": done + 1})] if done < 3 else []
        return Reply(text="done", tool_calls=calls)

    app = App([Agent(name="a", model=model, tools=[work])], "sqlite:runs.db")
    print(app.run_sync("a", "go", run_id=run_id or None).output)
    """
)


def run_program(folder: Path, run_id: str, *signals: signal.Signals) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    command = [sys.executable, "-W", "error", "-c", PROGRAM, run_id, *map(str, map(int, signals))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_prints_one_line_and_the_next_start_says_that_it_resumes(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    line = "holdfast: interrupted after step 2; start again to continue\n"
    assert run_program(tmp_path, "r", number) == (code, "1\n2\n", line)
    assert run_program(tmp_path, "r") == (0, "3\ndone\n", "holdfast: run r resumed after step 2, attempt 2\n")
    assert run_program(tmp_path, "r") == (0, "done\n", "")  # done before: nothing is resumed


def test_a_run_without_an_id_is_not_continued_by_the_next_start(tmp_path: Path) -> None:
    code, _, stderr = run_program(tmp_path, "", signal.SIGINT)
    assert code == 130
    assert re.fullmatch(r"holdfast: interrupted after step 2; without a run id .* from the beginning\n", stderr)


def test_a_second_ctrl_c_prints_one_line_too(tmp_path: Path) -> None:
    code, _, stderr = run_program(tmp_path, "r", signal.SIGINT, signal.SIGINT)
    assert (code, "Traceback" in stderr) == (130, False), stderr


async def answer(messages: object, tools: object) -> Reply:
    return Reply(text="hello")


async def test_a_running_event_loop_is_refused_with_a_hint_and_no_warning() -> None:
    app = App([Agent(name="a", model=answer)], "memory:")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DefinitionError, match=r"as in a notebook .* `await app\.run\(\.\.\.\)`"):
            app.run_sync("a", "go")


def test_another_prompt_is_a_conflict_and_no_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    app = App([Agent(name="a", model=answer)], f"sqlite:{tmp_path / 'runs.db'}")

    async def submit() -> None:
        async with app.replace(worker=False) as client:
            await client.submit("a", "one", run_id="r")

    asyncio.run(submit())
    with pytest.raises(RunConflict):
        app.run_sync("a", "two", run_id="r")
    assert "resumed" not in capfd.readouterr().err
