"""What can go wrong with schedules.

When a job fires: a cron expression in a time zone, and what is done about fires that were missed.

Jobs, the contract of what keeps them, and the one in memory.
"""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from holdfast.errors import HoldfastError


class ScheduleError(HoldfastError):
    """A schedule, or its runner, was put together in a way that cannot work."""


class JobExists(ScheduleError):
    """A job of this name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a job named {name!r} exists already: remove it first, or choose another name")
        self.name = name


class JobNotFound(ScheduleError):
    """There is no job of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no job named {name!r}")
        self.name = name


#: What becomes of fires that were missed while nothing ran: one for all of them, every one, or none.
Missed = Literal["once", "all", "none"]

#: A fire that is late by no more than this was not missed.
MISFIRE_GRACE_TIME = timedelta(minutes=1)


def cron_next(expression: str, timezone: str, after: datetime) -> datetime:
    """The first fire after a time, in UTC. Summer time is as one expects: nothing is skipped, nothing fires twice.

    Raises:
        ScheduleError: the expression or the time zone cannot be read, or never fires; or the library is not installed.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as exc:
        raise ScheduleError("cron schedules need the package cronsim: pip install 'holdfast[schedule]'") from exc
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:  # such as a directory of zones, or a name too long
        raise ScheduleError(f"{timezone!r} is no time zone: use a name such as Europe/Lisbon") from exc
    try:
        fires = (fire.astimezone(UTC) for fire in CronSim(expression, after.astimezone(zone)))
        # In the hour that the end of summer time repeats, it may begin with one of the hour before.
        return next(fire for fire in fires if fire > after)
    except CronSimError as exc:
        raise ScheduleError(f"{expression!r} is no cron expression: {exc}") from exc
    except StopIteration as exc:
        raise ScheduleError(f"{expression!r} never fires") from exc


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that is to be run again and again."""

    name: str
    agent: str
    prompt: str
    cron: str
    timezone: str = "UTC"
    missed: Missed = "once"
    caller_id: str = ""
    #: The first fire that was not dealt with.
    next_at: datetime

    def run_id(self, fire: datetime) -> str:
        """The id of the run that this fire starts: the same in every process, so that it is started once."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)[:60]
        digest = hashlib.sha256(self.name.encode(errors="surrogatepass")).hexdigest()[:8]
        return f"schedule:{readable}:{digest}:{fire.astimezone(UTC):%Y%m%dT%H%M%SZ}"


class JobStore(Protocol):
    """Keeps jobs."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def add(self, job: Job) -> None:
        """Keep a job.

        Raises:
            JobExists: there is one of this name.
        """
        ...

    async def get(self, name: str) -> Job:
        """The job of this name.

        Raises:
            JobNotFound: there is none.
        """
        ...

    async def jobs(self) -> Sequence[Job]:
        """All jobs, by name."""
        ...

    async def remove(self, name: str) -> None:
        """Forget a job.

        Raises:
            JobNotFound: there is none.
        """
        ...

    async def due(self, now: datetime) -> Sequence[Job]:
        """The jobs whose `next_at` has come, the oldest first."""
        ...

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        """Move the job's next fire. False, and nothing changed, if somebody else has moved it since `job` was read."""
        ...


class MemoryJobs:
    """Jobs of one process. Does not survive it."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def add(self, job: Job) -> None:
        if job.name in self._jobs:
            raise JobExists(job.name)
        self._jobs[job.name] = job

    async def get(self, name: str) -> Job:
        if name not in self._jobs:
            raise JobNotFound(name)
        return self._jobs[name]

    async def jobs(self) -> Sequence[Job]:
        return [self._jobs[name] for name in sorted(self._jobs)]

    async def remove(self, name: str) -> None:
        await self.get(name)
        del self._jobs[name]

    async def due(self, now: datetime) -> Sequence[Job]:
        return sorted((job for job in self._jobs.values() if job.next_at <= now), key=lambda job: job.next_at)

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        if self._jobs.get(job.name) != job:
            return False
        self._jobs[job.name] = msgspec.structs.replace(job, next_at=upcoming)
        return True
