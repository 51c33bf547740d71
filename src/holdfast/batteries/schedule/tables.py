"""The job store in SQLite or PostgreSQL."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.batteries.schedule.jobs import Job, JobExists, JobNotFound
from holdfast.db.tables import Cursor, Schema, Tables

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


class JobTable:
    """A durable `JobStore` that any number of processes may share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Create or migrate the table."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Close the database connection."""
        await self._tables.close()

    async def add(self, job: Job) -> None:
        """Add a job, unless there is one with its name."""
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
        """Return the job with this name."""
        jobs = await self._select("WHERE name = ?", name)
        if not jobs:
            raise JobNotFound(name)
        return jobs[0]

    async def jobs(self) -> Sequence[Job]:
        """Return all jobs, ordered by name."""
        return await self._select("ORDER BY name")

    async def remove(self, name: str) -> None:
        """Delete a job."""
        if not await self._write("DELETE FROM schedule_job WHERE name = ? RETURNING name", name):
            raise JobNotFound(name)

    async def due(self, now: datetime) -> Sequence[Job]:
        """Return the jobs with `next_at` at or before `now`, oldest first."""
        return await self._select("WHERE next_at <= ? ORDER BY next_at", _to_epoch_seconds(now))

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        """Set the next fire, unless it changed since `job` was read."""
        return await self._write(
            "UPDATE schedule_job SET next_at = ? WHERE name = ? AND next_at = ? RETURNING name",
            _to_epoch_seconds(upcoming),
            job.name,
            _to_epoch_seconds(job.next_at),
        )

    async def _select(self, clauses: str, *parameters: Any) -> list[Job]:
        async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
            return await cursor.execute(f"{_SELECT_JOBS} {clauses}", parameters)

        return [_parse_job(row) for row in await self._tables.read(work)]

    async def _write(self, sql: str, *parameters: Any) -> bool:
        """Run one statement. Returns whether it changed a row."""

        async def work(cursor: Cursor) -> bool:
            return bool(await cursor.execute(sql, parameters))

        return await self._tables.transaction(work)


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
