"""The runner: looks for jobs that are due and runs them, without a grammar or a store of its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from holdfast.batteries.schedule.jobs import ScheduleError
from holdfast.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger("holdfast.schedule")

J = TypeVar("J")


@dataclass(slots=True)
class Pass(Generic[J]):
    """What one pass did."""

    ran: list[J] = field(default_factory=list)
    #: Their schedule could not be computed.
    skipped: list[J] = field(default_factory=list)
    #: They failed, are not marked, and stay due.
    failed: list[J] = field(default_factory=list)


class ScheduleRunner(Generic[J]):
    """Runs jobs that are due. What a job is, and where it is kept, is the host's business."""

    def __init__(
        self,
        *,
        due: Callable[[datetime], Awaitable[Iterable[J]]] | None = None,
        run: Callable[[J], Awaitable[object]] | None = None,
        mark: Callable[[J, datetime], Awaitable[object]] | None = None,
        next: Callable[[J, datetime], datetime] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a runner of what the host gives it.

        Args:
            due: the jobs that are due at a time.
            run: does one job.
            mark: notes that a job was done, and when it is due next.
            next: when a job is due next, after a time.

        Raises:
            ScheduleError: one of them is missing.
        """
        if due is None or run is None or mark is None or next is None:
            given = {"due": due, "run": run, "mark": mark, "next": next}
            raise ScheduleError(f"a runner needs {', '.join(name for name, value in given.items() if value is None)}")
        self._due, self._run, self._mark, self._next, self._clock = due, run, mark, next, clock

    async def tick(self) -> Pass[J]:
        """One pass: run what is due now, side by side. Returns when all of it is done."""
        done: Pass[J] = Pass()
        now = self._clock.now()
        await asyncio.gather(*(self._run_job(job, now, done) for job in await self._find_due(now)))
        return done

    async def _find_due(self, now: datetime) -> list[J]:
        try:
            return list(await self._due(now))
        except Exception as exc:  # the host's code; the next pass asks again
            log.error("could not find out which jobs are due: %s", exc, exc_info=exc)
            return []

    async def _run_job(self, job: J, now: datetime, done: Pass[J]) -> None:
        # Before the run: a schedule that cannot be computed must not run its job again and again.
        try:
            upcoming = self._next(job, now)
        except Exception as exc:  # whatever a cron library raises
            log.error("job %s is skipped, its schedule cannot be computed: %s", job, exc)
            done.skipped.append(job)
            return
        try:
            await self._run(job)
            await self._mark(job, upcoming)
        except Exception as exc:  # the host's code: the job stays due
            log.error("job %s failed and stays due: %s", job, exc, exc_info=exc)
            done.failed.append(job)
            return
        done.ran.append(job)

    async def loop(self, poll_interval: timedelta = timedelta(seconds=5)) -> None:
        """Pass after pass, until cancelled. No job that fails, hangs on, or cannot be computed stalls another.

        A job that is still under way, one that equals it that is, is not run a second time. What is under way when the
        loop is cancelled is cancelled with it.
        """
        under_way: dict[asyncio.Task[None], J] = {}
        try:
            while True:
                now = self._clock.now()
                # Those that end while the list is made may still be on it.
                busy = list(under_way.values())
                for job in await self._find_due(now):
                    if job not in busy:
                        task = asyncio.create_task(self._run_job(job, now, Pass()))
                        under_way[task] = job
                        task.add_done_callback(under_way.pop)
                await self._clock.sleep(poll_interval)
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)
