"""A battery's tables in a PostgreSQL database."""

import asyncio
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg

from holdfast.batteries.database.errors import TablesError, TablesUnavailable
from holdfast.batteries.database.tables import Cursor, Schema

_T = TypeVar("_T")

#: How often a transaction is run again after a conflict, or after a connection was lost before it began.
_TRIES = 5


class _Cursor:
    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        cursor = self._connection.execute(sql.replace("?", "%s").encode(), parameters or None)
        return cursor.fetchall() if cursor.description is not None else ()


class PostgresTables:
    """One connection on a thread of its own, opened again when it was lost. Works behind a pooler."""

    def __init__(self, url: str, *, schema: str = "holdfast") -> None:
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", schema):
            raise TablesError(f"{schema!r} cannot be a schema name: use a-z, 0-9 and _")
        self._url, self._schema = url, schema
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

        return await self._on_thread(locked)

    async def read(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work`, which only reads."""
        return await self._on_thread(work)

    async def close(self) -> None:
        """Let go of the connection. May be called again."""
        self._closed = True
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown()

    async def _on_thread(self, work: Callable[[Cursor], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._transact, work)
        except psycopg.OperationalError as exc:
            raise TablesUnavailable(f"the database did not answer, try again: {exc}") from exc
        except psycopg.Error as exc:
            raise TablesError(f"could not use the tables in schema {self._schema}: {exc}") from exc

    def _transact(self, work: Callable[[Cursor], _T]) -> _T:
        for attempt in range(1, _TRIES + 1):
            connection = self._connected()
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL search_path = {self._schema}".encode())
                    return work(_Cursor(connection))
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                if attempt == _TRIES:
                    raise
            except psycopg.OperationalError:
                # Nothing says whether the last transaction was committed: that is for the caller to find out.
                self._connection = None
                connection.close()
                raise
        raise AssertionError("the last attempt returns or raises")

    def _connected(self) -> "psycopg.Connection[Any]":
        if self._closed:
            raise TablesError("the tables were closed")
        if self._connection is None or self._connection.closed:
            # A pooler may give each transaction another server connection: nothing may be prepared on one of them.
            self._connection = psycopg.connect(self._url, autocommit=True, prepare_threshold=None)
        return self._connection


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
