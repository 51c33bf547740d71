"""The runner: polls for due jobs and runs them. The host supplies the jobs, their store and their schedule."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from holdfast.batteries.schedule.jobs import ScheduleError
from holdfast.clock import CLOCK, Clock

log: logging.Logger = logging.getLogger("holdfast.schedule")

J = TypeVar("J")


@dataclass(slots=True)
class Pass(Generic[J]):
    """The jobs handled by one pass."""

    ran: list[J] = field(default_factory=list)
    #: Not run, because their next time could not be computed.
    skipped: list[J] = field(default_factory=list)
    #: Failed. They are not marked, so they stay due.
    failed: list[J] = field(default_factory=list)


class ScheduleRunner(Generic[J]):
    """Runs due jobs. A job may be any object; the host keeps it."""

    def __init__(
        self,
        *,
        due: Callable[[datetime], Awaitable[Iterable[J]]] | None = None,
        run: Callable[[J], Awaitable[object]] | None = None,
        mark: Callable[[J, datetime], Awaitable[object]] | None = None,
        next: Callable[[J, datetime], datetime] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create a runner from the host's functions, all of which are required.

        Args:
            due: returns the jobs that are due at a time.
            run: runs one job.
            mark: records that a job has run, and when it is due next.
            next: returns when a job is due next after a time.

        Raises:
            ScheduleError: one of them is missing.
        """
        if due is None or run is None or mark is None or next is None:
            given = {"due": due, "run": run, "mark": mark, "next": next}
            raise ScheduleError(
                f"a runner also needs {', '.join(name for name, value in given.items() if value is None)}"
            )
        self._due, self._run, self._mark, self._next, self._clock = due, run, mark, next, clock or CLOCK.get()

    async def tick(self) -> Pass[J]:
        """Run all jobs that are due now, concurrently, and wait for them."""
        result: Pass[J] = Pass()
        now = self._clock.now()
        await asyncio.gather(*(self._run_job(job, now, result) for job in await self._find_due(now)))
        return result

    async def _find_due(self, now: datetime) -> list[J]:
        try:
            return list(await self._due(now))
        except (Exception, asyncio.CancelledError) as exc:  # the host's code may raise anything; the next pass retries
            _raise_own_cancel(exc)
            log.error("could not list the due jobs: %s", exc, exc_info=exc)
            return []

    async def _run_job(self, job: J, now: datetime, result: Pass[J]) -> None:
        # Before the run: a job whose next time cannot be computed would stay due and run at every pass.
        try:
            upcoming = self._next(job, now)
        except Exception as exc:  # a cron library may raise anything
            log.error("job %s is skipped, its next time cannot be computed: %s", job, exc)
            result.skipped.append(job)
            return
        try:
            await self._run(job)
            await self._mark(job, upcoming)
        except (Exception, asyncio.CancelledError) as exc:  # the host's code may raise anything; the job stays due
            _raise_own_cancel(exc)
            log.error("job %s failed and stays due: %s", job, exc, exc_info=exc)
            result.failed.append(job)
            return
        result.ran.append(job)

    async def loop(self, poll_interval: timedelta = timedelta(seconds=5)) -> None:
        """Run due jobs every `poll_interval` until cancelled. A job that fails or hangs does not delay another.

        A job is not run while an equal job is still running. Cancelling the loop cancels the running jobs.
        """
        running: dict[asyncio.Task[None], J] = {}
        try:
            while True:
                now = self._clock.now()
                # Copied before `_find_due`: its list may still contain jobs that finish while it is read.
                busy = list(running.values())
                for job in await self._find_due(now):
                    if job not in busy:
                        task = asyncio.create_task(self._run_job(job, now, Pass()))
                        running[task] = job
                        task.add_done_callback(running.pop)
                await self._clock.sleep(poll_interval)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _raise_own_cancel(exc: BaseException) -> None:
    """Raise `exc` if it cancels this task. A job that was cancelled elsewhere does not end the pass or the loop."""
    task = asyncio.current_task()
    if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
        raise exc
