"""Cron jobs and their table."""

import hashlib
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from holdfast.db.tables import BatteryTables, Cursor, Schema
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


#: Which of the fires that were missed while no process ran are submitted later: one, all, or none.
Missed = Literal["once", "all", "none"]

#: A fire that is late by at most this does not count as missed. The clocks of a fleet differ by less.
MISFIRE_GRACE_TIME = timedelta(minutes=1)


def cron_next(expression: str, timezone: str, after: datetime) -> datetime:
    """Return the first fire after `after`, in UTC. A change to or from summer time skips or repeats no fire.

    Raises:
        ScheduleError: the expression or the time zone is invalid, it never fires again, or cronsim is not installed.
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
    except OverflowError as exc:
        raise ScheduleError(f"{expression!r} has no fire after {after} within the years 1 to 9999") from exc


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


SCHEMA = Schema(
    name="schedule",
    migrations=[
        [
            "CREATE TABLE schedule_job (name TEXT PRIMARY KEY, agent TEXT NOT NULL, prompt TEXT NOT NULL, "
            "cron TEXT NOT NULL, timezone TEXT NOT NULL, missed TEXT NOT NULL, caller_id TEXT NOT NULL, "
            "next_at BIGINT NOT NULL)",
            "CREATE INDEX schedule_job_next ON schedule_job (next_at)",
        ]
    ],
)

_SELECT_JOBS = "SELECT name, agent, prompt, cron, timezone, missed, caller_id, next_at FROM schedule_job"


class JobTable(BatteryTables):
    """Keeps jobs by name. Any number of processes may share it."""

    schema = SCHEMA

    async def add(self, job: Job) -> None:
        """Add a job.

        Raises:
            JobExists: there is one with this name.
        """
        added = await self._write(
            "INSERT INTO schedule_job VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING RETURNING name",
            job.name,
            job.agent,
            job.prompt,
            job.cron,
            job.timezone,
            job.missed,
            job.caller_id,
            _to_epoch_seconds(job.next_at),
        )
        if not added:
            raise JobExists(job.name)

    async def get(self, name: str) -> Job:
        """Return the job with this name.

        Raises:
            JobNotFound: there is none.
        """
        jobs = await self._select("WHERE name = ?", name)
        if not jobs:
            raise JobNotFound(name)
        return jobs[0]

    async def jobs(self) -> Sequence[Job]:
        """Return all jobs, ordered by name."""
        return await self._select("ORDER BY name")

    async def remove(self, name: str) -> None:
        """Delete a job.

        Raises:
            JobNotFound: there is none.
        """
        if not await self._write("DELETE FROM schedule_job WHERE name = ? RETURNING name", name):
            raise JobNotFound(name)

    async def due(self, now: datetime) -> Sequence[Job]:
        """Return the jobs with `next_at` at or before `now`, oldest first."""
        return await self._select("WHERE next_at <= ? ORDER BY next_at", _to_epoch_seconds(now))

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        """Set the job's next fire. Returns False and changes nothing if the job changed since `job` was read."""
        return await self._write(
            "UPDATE schedule_job SET next_at = ? WHERE name = ? AND next_at = ? RETURNING name",
            _to_epoch_seconds(upcoming),
            job.name,
            _to_epoch_seconds(job.next_at),
        )

    async def _select(self, clauses: str, *parameters: Any) -> list[Job]:
        return [_parse_job(row) for row in await self.select(f"{_SELECT_JOBS} {clauses}", *parameters)]

    async def _write(self, sql: str, *parameters: Any) -> bool:
        """Run one statement. Returns whether it changed a row."""

        async def work(cursor: Cursor) -> bool:
            return bool(await cursor.execute(sql, parameters))

        return await self.transaction(work)


def _to_epoch_seconds(at: datetime) -> int:
    return int(at.timestamp())


def _parse_job(row: Sequence[Any]) -> Job:
    name, agent, prompt, cron, timezone, missed, caller_id, next_at = row
    return Job(
        name=name,
        agent=agent,
        prompt=prompt,
        cron=cron,
        timezone=timezone,
        missed=missed,
        caller_id=caller_id,
        next_at=datetime.fromtimestamp(next_at, UTC),
    )
