"""A battery's tables in a PostgreSQL database."""

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg

from holdfast.batteries.database.errors import TablesError, TablesUnavailable
from holdfast.batteries.database.tables import Cursor, Schema

_T = TypeVar("_T")

#: The server is away, or gave up this transaction for the sake of others: the same may well succeed in a moment.
_PASSES = ("08", "57P", "53300", "25P03", "25P04", "40001", "40P01", "55P03")
#: Not in a moment, but nothing is wrong with what was asked: no room, no memory, a timeout of the server's own.
_LATER = ("53", "57014")

# libpq tells no code for why it could not connect. Where the server says it in another language, it is waited for.
_KEPT_OUT = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) .* does not exist"
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: Whatever waited long for others still gets its own try.
_A_TRY = 1.0


class _Cursor:
    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.replace("?", "%s").encode(), parameters or None)
        return cursor.fetchall() if cursor.description is not None else ()


class PostgresTables:
    """One connection on a thread of its own, opened again when it was lost. Works behind a pooler."""

    def __init__(self, url: str, *, schema: str = "holdfast", patience: timedelta = timedelta(seconds=30)) -> None:
        """Nothing is opened yet.

        Args:
            patience: how long a call waits for a server that is away before it raises `TablesUnavailable`.

        Raises:
            TablesError: the schema's name cannot be used.
        """
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", schema):
            raise TablesError(f"{schema!r} cannot be a schema name: use a-z, 0-9 and _")
        self._url, self._schema, self._patience = url, schema, patience.total_seconds()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-tables")
        self._connection: psycopg.Connection[Any] | None = None
        self._closed = False

    async def open(self, schema: Schema) -> None:
        """Make the tables, or bring them up to date. Processes that do so at once wait for each other."""

        def migrate(cursor: Cursor) -> None:
            cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            _migrate(cursor, schema)

        await self.write(migrate, alone=["schema"])

    async def write(self, work: Callable[[Cursor], _T], *, alone: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction, alone among those that have a name in common."""
        # In one order everywhere, so that no two wait for each other.
        keys = sorted(zlib.crc32(f"{self._schema}.{name}".encode()) for name in set(alone))

        def locked(cursor: Cursor) -> _T:
            for key in keys:
                cursor.execute("SELECT pg_advisory_xact_lock(?)", (key,))
            return work(cursor)

        return await self._on_thread(lambda deadline: self._write(locked, deadline))

    async def read(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work`, which only reads."""
        return await self._on_thread(lambda deadline: self._read(work))

    async def close(self) -> None:
        """Let go of the connection. May be called again."""
        self._closed = True
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()

    async def _on_thread(self, attempt: Callable[[float], _T]) -> _T:
        """What `attempt` gives, which is told when patience ends; made again while the server is away."""
        asked_at = time.monotonic()

        def persist() -> _T:
            deadline = max(asked_at + self._patience, time.monotonic() + min(self._patience, _A_TRY))
            return self._persist(lambda: attempt(deadline), deadline)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, persist)
        except psycopg.Error as exc:
            if _passes(exc) or (exc.sqlstate or "").startswith(_LATER):
                raise TablesUnavailable(f"the database did not answer, try again: {exc}") from exc
            raise TablesError(f"could not use the tables in schema {self._schema}: {exc}") from exc

    # -- on the thread ------------------------------------------------------------------------------------------

    def _persist(self, attempt: Callable[[], _T], deadline: float) -> _T:
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except psycopg.Error as exc:
                left = deadline - time.monotonic()
                if left <= 0 or not _passes(exc):
                    raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _read(self, work: Callable[[Cursor], _T]) -> _T:
        with self._transaction() as cursor:
            result = work(cursor)
            cursor.execute("COMMIT")
        return result

    def _write(self, work: Callable[[Cursor], _T], deadline: float) -> _T:
        with self._transaction() as cursor:
            [(number,)] = cursor.execute("SELECT txid_current()")
            result = work(cursor)
            try:
                cursor.execute("COMMIT")
            except psycopg.OperationalError:
                if not self._was_committed(number, deadline):
                    raise
        return result

    @contextmanager
    def _transaction(self) -> Iterator[Cursor]:
        connection = self._connected()
        try:
            connection.execute(f"BEGIN; SET LOCAL search_path = {self._schema}".encode())
            yield _Cursor(connection)
        except BaseException:
            try:
                connection.execute("ROLLBACK")
            except psycopg.Error:
                connection.close()
            raise

    def _was_committed(self, number: int, deadline: float) -> bool:
        """Whether the transaction of this number was, whose end nobody was told.

        Raises:
            TablesUnavailable: the server does not say.
        """

        def ask() -> bool:
            [(state,)] = _Cursor(self._connected()).execute("SELECT txid_status(?)", (number,))
            if state == "in progress":
                raise psycopg.OperationalError("it is still under way")
            return bool(state == "committed")

        try:
            return self._persist(ask, deadline)
        except psycopg.Error as exc:
            raise TablesUnavailable(f"it is not known whether this was written, the server is away: {exc}") from exc

    def _connected(self) -> "psycopg.Connection[Any]":
        if self._closed:
            raise TablesError("the tables were closed")
        if self._connection is None or self._connection.closed:
            # A pooler may give each transaction another server connection: nothing may be prepared on one of them.
            self._connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        return self._connection


def _passes(exc: psycopg.Error) -> bool:
    """Whether the same may well succeed in a moment."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError) and not _KEPT_OUT.search(str(exc))
    return exc.sqlstate.startswith(_PASSES)


def _migrate(cursor: Cursor, schema: Schema) -> None:
    cursor.execute("CREATE TABLE IF NOT EXISTS battery (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    rows = cursor.execute("SELECT version FROM battery WHERE name = ?", (schema.battery,))
    version = rows[0][0] if rows else 0
    if version > len(schema.steps):
        raise TablesError(f"a newer holdfast made the {schema.battery} tables (version {version}): upgrade holdfast")
    for step in schema.steps[version:]:
        for statement in step:
            cursor.execute(statement)
    cursor.execute(
        "INSERT INTO battery VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        (schema.battery, len(schema.steps)),
    )
