"""Tables of batteries in a SQLite file, on a thread of their own, and in memory."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from os import PathLike
from typing import Any, TypeVar

import apsw

from holdfast.concurrency import JobThread
from holdfast.db.sqlite_file import APPLICATION_ID, ErrorTypes, SqliteFile, set_synchronous, transaction
from holdfast.db.tables import Cursor, Schema, TablesError, TablesUnavailable, check_text, run_blocking

_T = TypeVar("_T")

_TABLES_ERRORS = ErrorTypes(
    full=TablesUnavailable,
    denied=TablesError,
    locked=TablesUnavailable,
    io=TablesUnavailable,
    replaced=TablesError,
    other=TablesError,
)

_CREATE_VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS holdfast_battery (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID"
)


class _SqliteCursor:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        check_text(parameters)
        return list(self._connection.execute(sql, parameters))


class SqliteTables:
    """One connection on its own thread. Several processes may use the same file."""

    durable = True

    def __init__(
        self, path: str | PathLike[str], *, timeout: timedelta = timedelta(seconds=10), vfs: str | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            path: the file.
            timeout: how long a transaction waits for a lock of another process.
            vfs: the name of a registered SQLite VFS, such as that of a simulated disk.
        """
        self._file = SqliteFile(path, timeout=timeout, errors=_TABLES_ERRORS, vfs=vfs)
        self._thread = JobThread("holdfast-tables")
        self._connection: apsw.Connection | None = None

    async def open(self, schema: Schema) -> None:
        """Create or migrate the tables."""
        if self._thread.is_closed:
            self._thread = JobThread("holdfast-tables")
        await self._run_on_thread(self._connect)
        await self.transaction(partial(_migrate, schema))

    async def read_version(self, schema: Schema) -> int:
        """Return the version of the tables; zero if there are none."""
        return await self._run_on_thread(partial(self._read_version, schema))

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction. A SQLite file has one writer at a time, so `lock` adds nothing."""
        return await self._run_on_thread(partial(self._write, work))

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads."""
        return await self._run_on_thread(partial(self._read, work))

    async def close(self) -> None:
        """Finish the work in progress, then close the connection. May be called again."""
        await self._thread.close(self._disconnect)

    async def _run_on_thread(self, work: Callable[[], _T]) -> _T:
        if self._thread.is_closed:
            raise TablesError("the tables were closed")
        return await self._thread.submit(partial(self._run_mapped, work))

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run_mapped(self, work: Callable[[], _T]) -> _T:
        with self._file.mapped_errors(self._connection):
            return work()

    def _connect(self) -> None:
        if self._connection is not None:
            return
        self._file.unwatch_files()
        self._file.create()
        connection = self._file.connect()
        try:
            self._file.set_format(connection)
            set_synchronous(connection, full=True)
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # creates the WAL and its index
            self._file.watch_files()
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _read_version(self, schema: Schema) -> int:
        if not self._file.path.exists():
            return 0
        connection = self._connection or self._file.connect()
        try:
            self._file.refuse_foreign(connection)
            return run_blocking(_read_version(schema, _SqliteCursor(connection)))
        finally:
            if connection is not self._connection:
                connection.close()

    def _write(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        connection = self._require_connection()
        with transaction(connection):
            return run_blocking(work(_SqliteCursor(connection)))

    def _read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        return run_blocking(work(_SqliteCursor(self._require_connection())))

    def _require_connection(self) -> apsw.Connection:
        if self._connection is None:
            raise TablesError(f"the tables in {self._file.path} are not open")
        self._file.check_files()
        return self._connection


class MemoryTables:
    """Tables in the memory of this process. A call ends before any other task runs.

    Closing them loses nothing: the rows live as long as this object.
    """

    durable = False

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")

    async def open(self, schema: Schema) -> None:
        """Create the tables."""
        await self.transaction(partial(_migrate, schema))

    async def read_version(self, schema: Schema) -> int:
        """Return the version of the tables; zero if there are none."""
        return await self.read(partial(_read_version, schema))

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction. There is one connection, so `lock` adds nothing."""
        with _mapped_memory_errors(), transaction(self._connection):
            return run_blocking(work(_SqliteCursor(self._connection)))

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads."""
        with _mapped_memory_errors():
            return run_blocking(work(_SqliteCursor(self._connection)))

    async def close(self) -> None:
        """Keep the rows."""


@contextmanager
def _mapped_memory_errors() -> Iterator[None]:
    try:
        yield
    except apsw.Error as exc:
        raise TablesError(f"the tables in memory could not be read or written: {exc}") from exc


async def _migrate(schema: Schema, cursor: Cursor) -> None:
    if not await cursor.execute("SELECT 1 FROM sqlite_schema LIMIT 1"):
        await cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    await cursor.execute(_CREATE_VERSION_TABLE)
    for statements in schema.migrations[await _read_version(schema, cursor) :]:
        for statement in statements:
            await cursor.execute(statement)
    await cursor.execute("REPLACE INTO holdfast_battery VALUES (?, ?)", (schema.name, len(schema.migrations)))


async def _read_version(schema: Schema, cursor: Cursor) -> int:
    """Return the version of the tables; zero if there are none."""
    if not await cursor.execute("SELECT 1 FROM sqlite_schema WHERE name = 'holdfast_battery'"):
        return 0
    rows = await cursor.execute("SELECT version FROM holdfast_battery WHERE name = ?", (schema.name,))
    version: int = rows[0][0] if rows else 0
    if version > len(schema.migrations):
        raise TablesError(f"a newer holdfast made the {schema.name} tables (version {version}): upgrade holdfast")
    return version
