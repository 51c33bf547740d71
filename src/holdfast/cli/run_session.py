"""Executes runs for a command, so that Ctrl-C and SIGTERM leave them resumable, and prints the result."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.cli.listeners import ProgressListener
from holdfast.cli.opening import report_slow_open
from holdfast.cli.output import format_error, format_value, is_debug_enabled, print_diagnostic, print_json, sanitize
from holdfast.cli.printing import PrintedCall, format_command
from holdfast.core.errors import (
    NotDurable,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunLost,
    RunParked,
    Shutdown,
    ShuttingDown,
)
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import RunWaiting, describe_waits

_T = TypeVar("_T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalHandler:
    """The first signal starts a shutdown, the second one ends the process.

    The process then ends without another write to the store, as after `kill -9`. The finished steps are saved.
    """

    def __init__(
        self,
        shutdown: Callable[[], Coroutine[Any, Any, None]],
        listener: ProgressListener,
        on_force_quit: Callable[[], None],
    ) -> None:
        """Use `shutdown` for the first signal; call `on_force_quit` before the process ends."""
        self._shutdown, self._listener, self._on_force_quit = shutdown, listener, on_force_quit
        self._task: asyncio.Task[None] | None = None

    @property
    def stopped(self) -> bool:
        """Whether a signal has started the shutdown."""
        return self._task is not None

    def install(self) -> None:
        """Handle SIGINT and SIGTERM from now on."""
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    async def close(self) -> None:
        """Wait for the shutdown and remove the handlers."""
        if self._task is not None:
            await self._task
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        if self._task is None:
            self._listener.stop_signal = number
            self._task = asyncio.get_running_loop().create_task(self._shutdown())
            self._listener.print_status("stopping after the current step; a second signal stops immediately", "yellow")
            return
        self._listener.stop()
        self._on_force_quit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + number)


async def run_app(
    app: App, listener: ProgressListener, work: Callable[[], Awaitable[_T]], *, on_force_quit: Callable[[], None]
) -> _T:
    """Open the App, await `work` with a `SignalHandler`, and close the App."""
    handler = SignalHandler(app.shutdown, listener, on_force_quit)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(handler.close)
        with report_slow_open():
            await stack.enter_async_context(app)
        handler.install()
        return await work()


def report_force_quit() -> None:
    """Print that the runs of a stopped process are interrupted."""
    print_diagnostic("stopped immediately; the runs are interrupted")


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run. `--json` prints these fields."""

    run_id: str
    status: Literal["done", "interrupted", "waiting", "parked", "failed", "cancelled", "lost"]
    output: Any = None
    steps: int | None = None
    usage: Usage = NO_USAGE
    #: Why the run is not done.
    reason: str = ""
    #: The command that resumes the run; empty if it cannot be resumed.
    resume: str = ""
    #: The command that resolves a call in doubt, to be used before `resume`.
    unpark: str = ""
    #: The calls that a waiting run waits for, each with the command that answers it.
    waits: tuple[PrintedCall, ...] = ()


async def collect_result(
    app: App, run_id: str, execute: Callable[[], Awaitable[Result]], resume: str, store: str
) -> CommandResult:
    """Execute a run and return its outcome. `resume` is the command that resumes it, `store` the given URL or empty.

    Raises:
        CheckpointError: the run could not be started, claimed or read.
    """
    try:
        result = await execute()
    except RunParked as exc:
        unpark = format_unpark_command(run_id, store) if exc.message.startswith("in doubt") else ""
        return CommandResult(run_id=run_id, status="parked", reason=exc.message, resume=resume, unpark=unpark)
    except RunWaiting as exc:
        return make_waiting_result(exc, store, resume)
    except (ShuttingDown, NotDurable):
        raise
    except RunInterrupted as exc:
        step = exc.step if isinstance(exc, Shutdown) else None
        again = resume if app.store else ""
        return CommandResult(run_id=run_id, status="interrupted", steps=step, reason=str(exc), resume=again)
    except RunLost as exc:
        return CommandResult(run_id=run_id, status="lost", reason=str(exc))
    except CheckpointError:
        raise
    except Exception as exc:  # the model's or a tool's own error
        if is_debug_enabled():
            raise
        status: Literal["cancelled", "failed"] = "cancelled" if isinstance(exc, RunCancelled) else "failed"
        is_stored = await _is_stored(app, run_id)
        reason = exc.error if isinstance(exc, RunFailed) else format_error(exc)
        return CommandResult(run_id=run_id, status=status, reason=reason, resume=resume if is_stored else "")
    return CommandResult(run_id=run_id, status="done", output=result.output, steps=result.steps, usage=result.usage)


def make_waiting_result(waiting: RunWaiting, store: str, resume: str = "") -> CommandResult:
    """Return the outcome of a run that waits for a person, a signal or a result."""
    return CommandResult(
        run_id=waiting.run_id,
        status="waiting",
        reason=f"for {describe_waits(waiting.calls)}",
        resume=resume,
        waits=tuple(PrintedCall.make(call, store) for call in waiting.calls),
    )


async def _is_stored(app: App, run_id: str) -> bool:
    if app.store is None:
        return False
    try:
        await get_record(app.store, run_id)
    except CheckpointError:
        return False
    return True


def print_result(result: CommandResult, *, as_json_text: bool, stop_signal: int | None = None) -> int:
    """Print the result and, unless it is done, the next commands. Return the exit code.

    Args:
        stop_signal: the signal that stopped the command.
    """
    if as_json_text:
        print_json(result)
    elif result.status == "done":
        text = format_value(result.output)
        print(sanitize(text) if sys.stdout.isatty() else text, flush=True)
    if result.status == "interrupted" and stop_signal is not None:
        after = "" if result.steps is None else f" after step {result.steps}"
        then = f"resume with: {result.resume}" if result.resume else "without a store it cannot be resumed"
        print_diagnostic(f"run {result.run_id} interrupted{after}; {then}")
        return 128 + stop_signal
    if result.status != "done":
        print_diagnostic(_format_status(result))
        if result.unpark:
            print_diagnostic(f"first resolve the call in doubt: {result.unpark}")
        for call in result.waits:
            if call.command:
                print_diagnostic(f"{call.action} with: {call.command}")
        if result.resume:
            when = "then a worker resumes it, or: " if result.waits else "resume with: "
            print_diagnostic(f"{when}{result.resume}")
    return 0 if result.status == "done" else 1


def _format_status(result: CommandResult) -> str:
    """Format why the run is not done, such as `run r1 failed: the model is down`."""
    if result.status == "cancelled":
        return f"run {result.run_id} was cancelled"
    verb = "failed" if result.status == "failed" else f"is {result.status}"
    return f"run {result.run_id} {verb}: {result.reason}"


def report_attachment(record: RunRecord, listener: ProgressListener) -> None:
    """Print why the run with this id is not executed here, if it is not."""
    if record.status is RunStatus.DONE:
        listener.print_status("the run is done: this is its recorded result", "cyan")
    elif record.status is RunStatus.RUNNING and record.owner_alive:
        listener.print_status("another worker executes the run: waiting for its result", "cyan")


def format_resume_command(target: list[str], run_id: str, store: str) -> str:
    """Return the command that resumes a run."""
    if target[0].startswith("-"):
        return format_command("resume", store, run_id, options=tuple(target))
    return format_command("resume", store, *target, run_id)


def format_unpark_command(run_id: str, store: str) -> str:
    """Return the command that resolves a call in doubt."""
    return format_command("unpark", store, run_id, options=("--resolve", "CALL=RESULT"))
