"""Jobs, the times at which they fire, the store protocol, and the store in memory."""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Literal, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from holdfast.root_error import HoldfastError


class ScheduleError(HoldfastError):
    """A schedule, a job or a runner has invalid settings.

    What to do: Correct the setting that the message names.
    """


class JobExists(ScheduleError):
    """A job with this name exists already.

    What to do: Use another name, or remove the job first.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"a job named {name!r} exists already: remove it first, or choose another name")
        self.name = name


class JobNotFound(ScheduleError):
    """There is no job with this name.

    What to do: Check the name: `holdfast schedule ls` lists the jobs.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no job named {name!r}")
        self.name = name


#: How many of the fires missed while no process ran are made up for: one, all, or none.
Missed = Literal["once", "all", "none"]

#: A fire that is late by at most this does not count as missed.
MISFIRE_GRACE_TIME = timedelta(minutes=1)


def cron_next(expression: str, timezone: str, after: datetime) -> datetime:
    """Return the first fire after `after`, in UTC. A change to or from summer time skips or repeats no fire.

    Raises:
        ScheduleError: the expression or the time zone is invalid, it never fires, or cronsim is not installed.
    """
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as exc:
        raise ScheduleError("cron schedules need the package cronsim: pip install 'holdfast[schedule]'") from exc
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:  # OSError: a directory of zones, or a name too long
        raise ScheduleError(f"{timezone!r} is not a time zone: use a name such as Europe/Lisbon") from exc
    try:
        fires = (fire.astimezone(UTC) for fire in CronSim(expression, after.astimezone(zone)))
        # In the hour that the end of summer time repeats, CronSim may start with a fire of the hour before.
        return next(fire for fire in fires if fire > after)
    except CronSimError as exc:
        raise ScheduleError(f"{expression!r} is not a cron expression: {exc}") from exc
    except StopIteration as exc:
        raise ScheduleError(f"{expression!r} never fires") from exc


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, its prompt, and the times at which it runs."""

    name: str
    agent: str
    prompt: str
    cron: str
    timezone: str = "UTC"
    missed: Missed = "once"
    caller_id: str = ""
    #: The first fire that was not handled yet.
    next_at: datetime

    def run_id(self, fire: datetime) -> str:
        """Return the id of the run that this fire submits. It is equal in every process, so the run starts once."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)[:60]
        digest = hashlib.sha256(self.name.encode(errors="surrogatepass")).hexdigest()[:8]
        return f"schedule:{readable}:{digest}:{fire.astimezone(UTC):%Y%m%dT%H%M%SZ}"


class JobStore(Protocol):
    """Keeps jobs by name."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def add(self, job: Job) -> None:
        """Add a job.

        Raises:
            JobExists: there is one with this name.
        """
        ...

    async def get(self, name: str) -> Job:
        """Return the job with this name.

        Raises:
            JobNotFound: there is none.
        """
        ...

    async def jobs(self) -> Sequence[Job]:
        """Return all jobs, ordered by name."""
        ...

    async def remove(self, name: str) -> None:
        """Delete a job.

        Raises:
            JobNotFound: there is none.
        """
        ...

    async def due(self, now: datetime) -> Sequence[Job]:
        """Return the jobs with `next_at` at or before `now`, oldest first."""
        ...

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        """Set the job's next fire. Returns False and changes nothing if the job changed since `job` was read."""
        ...


class MemoryJobs:
    """Keeps jobs in memory, for one process. They do not survive the process."""

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
        return sorted((job for job in self._jobs.values() if job.next_at <= now), key=attrgetter("next_at"))

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        if self._jobs.get(job.name) != job:
            return False
        self._jobs[job.name] = msgspec.structs.replace(job, next_at=upcoming)
        return True
