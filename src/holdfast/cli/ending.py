"""How a run that a command drove came to its end, and what is printed about it."""

import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.cli.errors import debugging, one_line
from holdfast.cli.output import is_terminal, print_json, printable, talk, text_of
from holdfast.cli.stores import record_of, without_secret
from holdfast.run.errors import NotAdmitted, NotDurable, RunCancelled, RunInterrupted, RunLost, RunParked
from holdfast.run.outcome import Result
from holdfast.run.usage import NO_USAGE, Usage


class Ending(msgspec.Struct, frozen=True, kw_only=True):
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


async def ending_of(app: App, run_id: str, drive: Callable[[], Awaitable[Result]], resume: str, unpark: str) -> Ending:
    """Drive a run and say how that ended. What went wrong before there was a run is raised.

    Raises:
        CheckpointError: the run could not be begun, claimed or read.
    """
    try:
        result = await drive()
    except RunParked as exc:
        in_doubt = exc.why.startswith("in doubt")
        return Ending(run_id=run_id, status="parked", reason=exc.why, resume=resume, unpark=unpark if in_doubt else "")
    except (NotAdmitted, NotDurable):
        raise
    except RunInterrupted as exc:
        return Ending(run_id=run_id, status="interrupted", reason=str(exc), resume=resume if app.store else "")
    except RunLost as exc:
        return Ending(run_id=run_id, status="lost", reason=str(exc))
    except CheckpointError:
        raise
    except Exception as exc:  # the model's or a tool's own error
        if debugging():
            raise
        status: Literal["cancelled", "failed"] = "cancelled" if isinstance(exc, RunCancelled) else "failed"
        kept = await _is_kept(app, run_id)
        return Ending(run_id=run_id, status=status, reason=one_line(exc), resume=resume if kept else "")
    return Ending(run_id=run_id, status="done", output=result.output, steps=result.iterations, usage=result.usage)


async def _is_kept(app: App, run_id: str) -> bool:
    """Whether the store still has a run that failed."""
    if app.store is None:
        return False
    try:
        await record_of(app.store, run_id)
    except CheckpointError:
        return False
    return True


def print_ending(ending: Ending, *, as_json_text: bool) -> int:
    """Print what there is to print; the exit code of the command."""
    if as_json_text:
        print_json(ending)
    elif ending.status == "done":
        text = text_of(ending.output)
        print(printable(text) if is_terminal(sys.stdout) else text, flush=True)
    if ending.status != "done":
        talk(f"run {ending.run_id} is {ending.status}: {ending.reason}")
        if ending.unpark:
            talk(f"first say what became of the call: {ending.unpark}")
        if ending.resume:
            talk(f"go on with: {ending.resume}")
    return 0 if ending.status == "done" else 1


def resume_command(target: list[str], run_id: str, store: str) -> str:
    """What to type to go on with a run."""
    return _command("resume", store, *target, run_id)


def unpark_command(run_id: str, store: str) -> str:
    """What to type to tell a run what became of a call."""
    return _command("unpark", store, "--answer", "CALL=RESULT", run_id)


def _command(name: str, store: str, *arguments: str) -> str:
    where = ["--store", without_secret(store)] if store else []
    if arguments[-1].startswith("-"):  # an id may look like an option
        *others, run_id = arguments
        return shlex.join(["holdfast", name, *where, *others, "--", run_id])
    return shlex.join(["holdfast", name, *arguments, *where])
