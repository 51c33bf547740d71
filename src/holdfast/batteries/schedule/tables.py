"""Jobs in the database of the checkpoints."""

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


class TablesJobs:
    """A `JobStore` that survives, and that any number of processes share."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    async def open(self) -> None:
        """Make the table ready."""
        await self._tables.open(SCHEMA)

    async def close(self) -> None:
        """Let go of the database."""
        await self._tables.close()

    async def add(self, job: Job) -> None:
        """Keep a job, unless there is one of its name."""

        async def work(cursor: Cursor) -> bool:
            rows = await cursor.execute(
                "INSERT INTO schedule_job VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING RETURNING name",
                (
                    job.name,
                    job.agent,
                    job.prompt,
                    job.cron,
                    job.timezone,
                    job.missed,
                    job.caller_id,
                    _to_epoch_seconds(job.next_at),
                ),
            )
            return bool(rows)

        if not await self._tables.transaction(work):
            raise JobExists(job.name)

    async def get(self, name: str) -> Job:
        """The job of this name."""
        rows = await self._tables.read(lambda cursor: cursor.execute(f"{_SELECT_JOBS} WHERE name = ?", (name,)))
        if not rows:
            raise JobNotFound(name)
        return _parse_job(rows[0])

    async def jobs(self) -> Sequence[Job]:
        """All jobs, by name."""
        return [
            _parse_job(row)
            for row in await self._tables.read(lambda cursor: cursor.execute(f"{_SELECT_JOBS} ORDER BY name"))
        ]

    async def remove(self, name: str) -> None:
        """Forget a job."""
        sql = "DELETE FROM schedule_job WHERE name = ? RETURNING name"
        if not await self._tables.transaction(lambda cursor: cursor.execute(sql, (name,))):
            raise JobNotFound(name)

    async def due(self, now: datetime) -> Sequence[Job]:
        """The jobs whose time has come."""
        sql = f"{_SELECT_JOBS} WHERE next_at <= ? ORDER BY next_at"
        return [
            _parse_job(row)
            for row in await self._tables.read(lambda cursor: cursor.execute(sql, (_to_epoch_seconds(now),)))
        ]

    async def advance(self, job: Job, upcoming: datetime) -> bool:
        """Move the next fire, if nobody else has."""
        sql = "UPDATE schedule_job SET next_at = ? WHERE name = ? AND next_at = ? RETURNING name"
        parameters = (_to_epoch_seconds(upcoming), job.name, _to_epoch_seconds(job.next_at))
        return bool(await self._tables.transaction(lambda cursor: cursor.execute(sql, parameters)))


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
