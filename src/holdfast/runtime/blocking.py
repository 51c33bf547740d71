"""`App.run_sync`: an event loop for one call, and one line instead of a traceback after Ctrl-C."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord
from holdfast.core.errors import DefinitionError, Shutdown

T = TypeVar("T")


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in an event loop of its own.

    Raises:
        DefinitionError: this thread has an event loop that runs.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise DefinitionError(
            "run_sync was called in a running event loop, as in a notebook or an async function: "
            "use `async with app:` and `await app.run(...)` instead"
        )
    return asyncio.run(work())  # not while an exception is handled: it would be the context of what this raises


def report_resume(record: RunRecord) -> None:
    """Print that the run continues, if it has begun and no live worker executes it."""
    progress = decode(record.progress, Progress)
    if not record.is_terminal and not record.owner_alive and progress.attempts:
        attempt = progress.attempts[-1].number + 1
        _print(f"run {record.run_id} resumed after step {progress.steps}, attempt {attempt}")


def exit_on_signal(error: BaseException, number: int, *, can_start_again: bool) -> NoReturn:
    """Print where the run of an interrupted process stopped, and exit as a shell expects after this signal."""
    step = error.step if isinstance(error, Shutdown) else None
    after = "" if step is None else f" after step {step}"
    then = "start again to continue" if can_start_again else "without a run id or a store it starts from the beginning"
    _print(f"interrupted{after}; {then}")
    raise SystemExit(128 + number) from None


def _print(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)
