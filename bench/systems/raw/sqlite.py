"""SQLite with nothing around it: WAL, synchronous=FULL, one connection."""

from collections.abc import Sequence
from pathlib import Path

import apsw
from bench.systems.raw.row import Row


class SqliteLog:
    """A table of messages."""

    def __init__(self, folder: str) -> None:
        self._connection = apsw.Connection(str(Path(folder) / "raw.db"))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS messages (run INT, seq INT, body BLOB);"
            "CREATE UNIQUE INDEX IF NOT EXISTS messages_of ON messages (run, seq)"
        )

    def append(self, rows: Sequence[Row]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        for row in rows:
            self._connection.execute("INSERT INTO messages VALUES (?, ?, ?)", row)
        self._connection.execute("COMMIT")

    def runs(self) -> list[int]:
        # One step through the index for each run: a plain DISTINCT would read all of it.
        found = self._connection.execute(
            "WITH RECURSIVE known(run) AS (SELECT min(run) FROM messages UNION ALL"
            " SELECT (SELECT min(run) FROM messages WHERE run > known.run) FROM known WHERE known.run NOT NULL)"
            " SELECT run FROM known WHERE run NOT NULL"
        )
        return [run for (run,) in found]

    def load(self, run: int) -> list[bytes]:
        found = self._connection.execute("SELECT body FROM messages WHERE run = ? ORDER BY seq", (run,))
        return [body for (body,) in found]

    def close(self) -> None:
        self._connection.close()
