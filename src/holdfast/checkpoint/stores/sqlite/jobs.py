"""What callers ask of the writer."""

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.checkpoint.stores.sqlite.appends import append_together
from holdfast.checkpoint.stores.sqlite.runs import append, remove
from holdfast.checkpoint.stores.sqlite.together import MOST, remove_together
from holdfast.checkpoint.stores.sqlite.transaction import Transaction


class Job:
    """One caller's write, and what became of it."""

    __slots__ = ("arguments", "done", "error", "result", "run_id", "work")

    def __init__(
        self, run_id: str | None, work: Callable[..., Any], arguments: tuple[Any, ...], done: asyncio.Future[Any]
    ) -> None:
        self.run_id = run_id
        self.work = work
        self.arguments = arguments
        self.done = done
        self.result: Any = None
        self.error: Exception | None = None

    def tell(self) -> None:
        """Let the caller go on. Only in the event loop's thread."""
        if self.done.done():
            return  # cancelled meanwhile
        if self.error is None:
            self.done.set_result(self.result)
        else:
            self.done.set_exception(self.error)


def left_alone(jobs: list[Job], transaction: Transaction) -> list[Job]:
    """The jobs that are left when those of one kind were done together, as far as that is possible."""
    appends = [job for job in jobs if job.work is append]
    removals = [job for job in jobs if job.work is remove and job.arguments[1] is not None]
    left = [job for job in jobs if job.work is not append and (job.work is not remove or job.arguments[1] is None)]
    if appends:
        transaction.learn_newest_key()
    for some in _portions(appends):
        arguments = [job.arguments for job in some]
        if not append_together(arguments, transaction.cursor, transaction.known, transaction.now_micros):
            left += some
    for some in _portions(removals):
        if not remove_together([job.arguments[:2] for job in some], transaction):
            left += some
    return left


def _portions(jobs: list[Job]) -> list[list[Job]]:
    return [jobs[start : start + MOST] for start in range(0, len(jobs), MOST)]
