"""The host's own table as a checkpoint store: four methods over one row per run that has not ended."""

import sqlite3

from holdfast.checkpoint import RunCheckpoint


class JobTable:
    """Rows of the table `jobs`, which belongs to the host."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE TABLE IF NOT EXISTS jobs (run_id TEXT PRIMARY KEY, body BLOB NOT NULL)")

    async def save(self, checkpoint: RunCheckpoint) -> None:
        with self._db:
            self._db.execute("REPLACE INTO jobs VALUES (?, ?)", (checkpoint.run_id, checkpoint.to_json()))

    async def load(self, run_id: str) -> RunCheckpoint | None:
        row = self._db.execute("SELECT body FROM jobs WHERE run_id = ?", (run_id,)).fetchone()
        return None if row is None else RunCheckpoint.from_json(row[0])

    async def delete(self, run_id: str) -> None:
        with self._db:
            self._db.execute("DELETE FROM jobs WHERE run_id = ?", (run_id,))

    async def list_interrupted(self) -> list[RunCheckpoint]:
        return [RunCheckpoint.from_json(body) for (body,) in self._db.execute("SELECT body FROM jobs")]
