"""SQLite as a careful user writes it: the standard library's driver, WAL, synchronous=FULL, one connection."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from bench.systems.raw.row import Row


class SqliteLog:
    """A table of messages."""

    def __init__(self, folder: str) -> None:
        path = Path(folder) / "raw.db"
        # The thread of a group commit is not the one that opened it.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE IF NOT EXISTS messages (run INT, seq INT, body BLOB)")
        self._connection.execute("CREATE UNIQUE INDEX IF NOT EXISTS messages_of ON messages (run, seq)")

    def append(self, rows: Sequence[Row]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO messages VALUES (?, ?, ?)", rows)
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
