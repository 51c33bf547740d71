"""A battery's tables in a SQLite file."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.db.errors import TablesError, TablesUnavailable
from holdfast.db.tables import Cursor, Schema, check_text, run_blocking
from holdfast.db.thread import DatabaseThread

_T = TypeVar("_T")

_CREATE_VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS holdfast_battery (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
)


#: A new file is begun as the store of the checkpoints begins one, which may come to share it: it knows its files by the
#: number, and cannot change the rest afterwards.
APPLICATION_ID = 0x686F6C64
PAGE_SIZE = 16384
_AUTO_VACUUM_INCREMENTAL = 2


class _SqliteCursor:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        check_text(parameters)
        return list(self._connection.execute(sql, parameters))


class SqliteTables:
    """One connection on a thread of its own. Several processes may use the same file."""

    def __init__(self, path: str | Path, *, busy_timeout_ms: int = 10_000) -> None:
        self._path, self._busy_timeout_ms = Path(path), busy_timeout_ms
        self._thread = DatabaseThread()
        self._connection: apsw.Connection | None = None

    async def open(self, schema: Schema) -> None:
        """Make the tables, or bring them up to date."""
        if self._thread.closed.is_set():
            self._thread = DatabaseThread()
        await self._run_on_thread(self._connect)
        await self.transaction(lambda cursor: _migrate(cursor, schema))

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction. A file has one writer at a time, so all are alone."""

        def whole() -> _T:
            connection = self._require_connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = run_blocking(work(_SqliteCursor(connection)))
                connection.execute("COMMIT")
                return result
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

        return await self._run_on_thread(whole)

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads."""
        return await self._run_on_thread(lambda: run_blocking(work(_SqliteCursor(self._require_connection()))))

    async def close(self) -> None:
        """Finish what is under way, then let go of the connection. May be called again."""
        if not self._thread.closed.is_set():
            await self._thread.shutdown(self._disconnect)

    def _connect(self) -> None:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            connection = apsw.Connection(str(self._path))
            connection.set_busy_timeout(self._busy_timeout_ms)
            connection.pragma("page_size", PAGE_SIZE)
            connection.pragma("auto_vacuum", _AUTO_VACUUM_INCREMENTAL)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            self._connection = connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _require_connection(self) -> apsw.Connection:
        if self._connection is None:
            raise TablesError(f"the tables in {self._path} are not open")
        return self._connection

    async def _run_on_thread(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._thread.submit(work)
        except (apsw.BusyError, apsw.LockedError) as exc:
            raise TablesUnavailable(f"{self._path} is locked by another process: try again") from exc
        except (apsw.FullError, apsw.IOError) as exc:  # the second: a quota, or a disk in trouble
            raise TablesUnavailable(f"{self._path} cannot be written: free space and try again ({exc})") from exc
        except (apsw.Error, OSError) as exc:
            raise TablesError(f"could not use the tables in {self._path}: {exc}") from exc


async def _migrate(cursor: Cursor, schema: Schema) -> None:
    if not await cursor.execute("SELECT 1 FROM sqlite_schema LIMIT 1"):
        await cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    await cursor.execute(_CREATE_VERSION_TABLE)
    rows = await cursor.execute("SELECT version FROM holdfast_battery WHERE name = ?", (schema.name,))
    version = rows[0][0] if rows else 0
    if version > len(schema.migrations):
        raise TablesError(f"a newer holdfast made the {schema.name} tables (version {version}): upgrade holdfast")
    for step in schema.migrations[version:]:
        for statement in step:
            await cursor.execute(statement)
    await cursor.execute("REPLACE INTO holdfast_battery VALUES (?, ?)", (schema.name, len(schema.migrations)))
