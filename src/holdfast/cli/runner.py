"""Driving runs from a command, so that Ctrl-C and SIGTERM leave them resumable.

How a run that a command drove came to its end, and what is printed about it.
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.cli.errors import format_error, is_debug_enabled
from holdfast.cli.output import format_value, is_interactive, print_diagnostic, print_json, sanitize
from holdfast.cli.progress import ProgressListener
from holdfast.cli.stores import get_record, redact_url, report_slow_open
from holdfast.core.errors import NotDurable, RunCancelled, RunInterrupted, RunLost, RunParked, ShuttingDown
from holdfast.core.message import NO_USAGE, Usage
from holdfast.core.result import Result

_T = TypeVar("_T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def run_app(
    app: App, listener: ProgressListener, work: Callable[[], Awaitable[_T]], *, on_force_quit: Callable[[], None]
) -> _T:
    """Open the App, do `work` and close it. A signal begins the App's shutdown, a second one ends the process.

    The process ends then without another word to the store, as after `kill -9`: the run has saved its finished steps,
    and whatever would be politer needs a run that listens.

    Args:
        stopped_at_once: called before the process is ended.
    """
    loop = asyncio.get_running_loop()
    shutdowns: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if not shutdowns:
            shutdowns.append(loop.create_task(app.shutdown()))
            listener.print_status("stopping after the current step; once more stops at once", "yellow")
            return
        listener.stop()
        on_force_quit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    try:
        async with AsyncExitStack() as stack:
            with report_slow_open():
                await stack.enter_async_context(app)
            for number in _SIGNALS:
                loop.add_signal_handler(number, on_signal)
            return await work()
    finally:
        await asyncio.gather(*shutdowns)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class CommandResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run. This is what `--json` gives."""

    run_id: str
    status: Literal["done", "interrupted", "parked", "failed", "cancelled", "lost"]
    output: Any = None
    steps: int | None = None
    usage: Usage = NO_USAGE
    #: Why it is not done.
    reason: str = ""
    #: The command that goes on with it; empty if there is nothing to go on with.
    resume: str = ""
    #: The command that says, before that, what became of a call in doubt.
    unpark: str = ""


async def collect_result(
    app: App, run_id: str, execute: Callable[[], Awaitable[Result]], resume: str, unpark: str
) -> CommandResult:
    """Drive a run and say how that ended. What went wrong before there was a run is raised.

    Raises:
        CheckpointError: the run could not be begun, claimed or read.
    """
    try:
        result = await execute()
    except RunParked as exc:
        in_doubt = exc.message.startswith("in doubt")
        return CommandResult(
            run_id=run_id, status="parked", reason=exc.message, resume=resume, unpark=unpark if in_doubt else ""
        )
    except (ShuttingDown, NotDurable):
        raise
    except RunInterrupted as exc:
        return CommandResult(run_id=run_id, status="interrupted", reason=str(exc), resume=resume if app.store else "")
    except RunLost as exc:
        return CommandResult(run_id=run_id, status="lost", reason=str(exc))
    except CheckpointError:
        raise
    except Exception as exc:  # the model's or a tool's own error
        if is_debug_enabled():
            raise
        status: Literal["cancelled", "failed"] = "cancelled" if isinstance(exc, RunCancelled) else "failed"
        kept = await _is_stored(app, run_id)
        return CommandResult(run_id=run_id, status=status, reason=format_error(exc), resume=resume if kept else "")
    return CommandResult(run_id=run_id, status="done", output=result.output, steps=result.steps, usage=result.usage)


async def _is_stored(app: App, run_id: str) -> bool:
    """Whether the store still has a run that failed."""
    if app.store is None:
        return False
    try:
        await get_record(app.store, run_id)
    except CheckpointError:
        return False
    return True


def print_result(result: CommandResult, *, as_json_text: bool) -> int:
    """Print what there is to print; the exit code of the command."""
    if as_json_text:
        print_json(result)
    elif result.status == "done":
        text = format_value(result.output)
        print(sanitize(text) if is_interactive(sys.stdout) else text, flush=True)
    if result.status != "done":
        print_diagnostic(f"run {result.run_id} is {result.status}: {result.reason}")
        if result.unpark:
            print_diagnostic(f"first say what became of the call: {result.unpark}")
        if result.resume:
            print_diagnostic(f"go on with: {result.resume}")
    return 0 if result.status == "done" else 1


def format_resume_command(target: list[str], run_id: str, store: str) -> str:
    """What to type to go on with a run."""
    return _format_command("resume", store, *target, run_id)


def format_unpark_command(run_id: str, store: str) -> str:
    """What to type to tell a run what became of a call."""
    return _format_command("unpark", store, "--resolve", "CALL=RESULT", run_id)


def _format_command(name: str, store: str, *arguments: str) -> str:
    where = ["--store", redact_url(store)] if store else []
    if arguments[-1].startswith("-"):  # an id may look like an option
        *others, run_id = arguments
        return shlex.join(["holdfast", name, *where, *others, "--", run_id])
    return shlex.join(["holdfast", name, *arguments, *where])
