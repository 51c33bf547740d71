"""The schedule: cron jobs that submit runs, once per fire in a whole fleet."""

import logging
from collections.abc import Awaitable, Container, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Protocol, get_args

import msgspec

from holdfast.batteries.schedule.jobs import MISFIRE_GRACE_TIME, Job, JobTable, Missed, ScheduleError, cron_next
from holdfast.batteries.schedule.runner import Pass, ScheduleRunner
from holdfast.clock import CLOCK, Clock
from holdfast.concurrency import shielded
from holdfast.core.validation import check_choice, check_text
from holdfast.db.tables import Tables
from holdfast.ids import make_id

log: logging.Logger = logging.getLogger("holdfast.schedule")

#: How often the stored fires are compared with the clock.
_CHECK_INTERVAL = timedelta(minutes=1)


class Submit(Protocol):
    """Queues a run. The same id again is the same run. `App.submit` is one."""

    def __call__(self, agent: str, prompt: str, *, run_id: str, caller_id: str) -> Awaitable[str]: ...


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """One fire of one job."""

    job: Job
    at: datetime
    #: Missed, and not submitted later.
    skipped: bool = False

    def __str__(self) -> str:
        return f"{self.job.name} at {self.at:%Y-%m-%d %H:%M:%S} UTC"


class _FireRunner(ScheduleRunner[Fire]):
    """Submits runs. A cancel takes effect once a submitted fire is marked: else another process submits it again."""

    async def _run_job(self, job: Fire, now: datetime, result: Pass[Fire]) -> None:
        await shielded(super()._run_job(job, now, result))


class Schedule:
    """Cron jobs of an App, in its store. Every process of a fleet may have the same schedule: each fire is one run."""

    def __init__(self, *, tables: Tables | None = None, clock: Clock | None = None) -> None:
        """Create a schedule. `App(agents, schedule=Schedule())` submits its runs.

        Args:
            tables: keep the jobs. Default: in the store of the App, shared by all its processes.
        """
        self.tables, self._clock = tables, clock or CLOCK.get()
        self._jobs = JobTable(tables)
        self._submit: Submit | None = None
        #: `None`: all agents.
        self._agents: Container[str] | None = None
        self._checked_at: datetime | None = None
        self._runner = _FireRunner(due=self._due, run=self._run, mark=self._mark, next=self._next, clock=self._clock)

    def bind(self, submit: Submit, agents: Container[str] | None = None) -> None:
        """Submit runs with `submit`, of these agents. The jobs of other agents are left to other processes."""
        self._submit, self._agents = submit, agents

    async def open(self, tables: Tables) -> None:
        """Open the jobs: in `tables`, unless the schedule was given others."""
        await self._jobs.open(tables)

    async def add(
        self,
        name: str,
        agent: str,
        prompt: str,
        cron: str,
        *,
        timezone: str = "UTC",
        missed: Missed = "once",
        caller_id: str = "",
    ) -> Job:
        """Add a job that runs `agent` at every fire of `cron`.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            ScheduleError: the expression or the time zone is invalid.
            JobExists: there is a job with this name.
        """
        texts = {"name": name, "agent": agent, "prompt": prompt, "cron": cron, "timezone": timezone}
        for argument, value in {**texts, "caller_id": caller_id}.items():
            check_text(argument, value)
        check_choice("missed", missed, get_args(Missed))
        job = Job(
            name=name,
            agent=agent,
            prompt=prompt,
            cron=cron,
            timezone=timezone,
            missed=missed,
            caller_id=caller_id,
            next_at=cron_next(cron, timezone, self._clock.now()),
        )
        await self._jobs.add(job)
        return job

    async def remove(self, name: str) -> None:
        """Delete a job. Runs that it submitted continue."""
        await self._jobs.remove(name)

    async def jobs(self) -> Sequence[Job]:
        """Return all jobs, ordered by name."""
        return await self._jobs.jobs()

    async def upcoming(self, name: str, count: int = 1) -> Sequence[datetime]:
        """Return the next `count` fires of a job."""
        job = await self._jobs.get(name)
        fires = [job.next_at]
        while len(fires) < count:
            fires.append(cron_next(job.cron, job.timezone, fires[-1]))
        return fires[:count]

    async def run_now(self, name: str) -> str:
        """Submit an extra run of the job now. Returns the run's id, which is new at each call."""
        job = await self._jobs.get(name)
        return await self._submit_run(job, f"{job.run_id(self._clock.now())}:now:{make_id(4)}")

    async def tick(self) -> Pass[Fire]:
        """Submit the runs that are due now."""
        return await self._runner.tick()

    async def loop(self, poll_interval: timedelta = timedelta(seconds=5)) -> None:
        """Submit due runs every `poll_interval` until cancelled."""
        await self._runner.loop(poll_interval)

    async def close(self) -> None:
        """Close the jobs. May be called again."""
        await self._jobs.close()

    async def _due(self, now: datetime) -> list[Fire]:
        if self._checked_at is None or abs(now - self._checked_at) >= _CHECK_INTERVAL:
            await self._pull_back(now)
            self._checked_at = now
        fires = []
        for job in self._select_own(await self._jobs.due(now)):
            late = now - job.next_at > MISFIRE_GRACE_TIME
            fires.append(Fire(job=job, at=job.next_at, skipped=late and job.missed == "none"))
        return fires

    async def _pull_back(self, now: datetime) -> None:
        """Correct the next fires that a clock which was ahead has put too late."""
        latest = now + MISFIRE_GRACE_TIME
        for job in self._select_own(await self._jobs.jobs()):
            with suppress(ScheduleError):  # logged when the job is due
                upcoming = job.next_at if job.next_at <= latest else cron_next(job.cron, job.timezone, latest)
                if upcoming < job.next_at and await self._jobs.advance(job, upcoming):
                    log.warning(
                        "job %s was due next at %s, set by a clock that was ahead: it is due at %s now",
                        job.name,
                        job.next_at,
                        upcoming,
                    )

    def _select_own(self, jobs: Sequence[Job]) -> list[Job]:
        return [job for job in jobs if self._agents is None or job.agent in self._agents]

    def _next(self, fire: Fire, now: datetime) -> datetime:
        # With "all", the next fire may be a missed one; otherwise this fire stands for all missed ones.
        after = fire.at if fire.job.missed == "all" else max(now, fire.at)
        return cron_next(fire.job.cron, fire.job.timezone, after)

    async def _run(self, fire: Fire) -> None:
        if not fire.skipped:
            await self._submit_run(fire.job, fire.job.run_id(fire.at))

    async def _submit_run(self, job: Job, run_id: str) -> str:
        if self._submit is None:
            raise ScheduleError("the schedule submits nothing: give it to an App, App(agents, schedule=schedule)")
        return await self._submit(job.agent, job.prompt, run_id=run_id, caller_id=job.caller_id)

    async def _mark(self, fire: Fire, upcoming: datetime) -> None:
        # False if another process advanced the job first: it submitted a run with the same id.
        await self._jobs.advance(fire.job, upcoming)
