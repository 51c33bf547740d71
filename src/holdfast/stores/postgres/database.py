"""The database of one store: its SQL files, its text, its errors, and a pool of connections to read with."""

import asyncio
import contextlib
import functools
import operator
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeVar

import psycopg

from holdfast.checkpoint.errors import StoreError, StoreFull, StorePermissionError, StoreUnavailable
from holdfast.db.postgres_connection import (
    DeadlinePassed,
    ErrorKind,
    PgConnection,
    Rows,
    classify,
    format_read_timeout,
    is_read_only,
)
from holdfast.db.postgres_tables import PostgresServer

_T = TypeVar("_T")

_SQL_FOLDER = resources.files(__package__) / "sql"


class SqlFiles:
    """The SQL of one store. The files name the schema `holdfast`; this class substitutes another name."""

    def __init__(self, schema: str) -> None:
        """Raise `ValueError` for a name that PostgreSQL would need quoted."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", schema):
            raise ValueError(f"{schema!r} cannot be a schema: use up to 48 lowercase letters, digits and underscores")
        if schema.startswith("pg_") or schema == "information_schema":
            raise ValueError(f"{schema!r} belongs to PostgreSQL: choose another schema")
        self.schema = schema

    @functools.cached_property
    def migrations(self) -> list[str]:
        """The migrations in order. After the nth of them the schema has version n."""
        return [self._read(file) for file in _list_files("migrations")]

    @functools.cached_property
    def functions(self) -> list[str]:
        """The functions of the newest version. They call each other: create them with `check_function_bodies` off."""
        return [self._read(file) for file in _list_files("functions")]

    def load_query(self, name: str) -> str:
        return self._read(_SQL_FOLDER / "queries" / f"{name}.sql")

    def with_schema(self, sql: str) -> str:
        """Return the statement for this schema."""
        return re.sub(r"\bholdfast\.", f'"{self.schema}".', sql.replace("'holdfast'", f"'{self.schema}'"))

    def _read(self, file: Traversable) -> str:
        return self.with_schema(file.read_text(encoding="utf-8"))


def _list_files(folder: str) -> list[Traversable]:
    return sorted((_SQL_FOLDER / folder).iterdir(), key=operator.attrgetter("name"))


# PostgreSQL text cannot hold NUL and lone surrogates, which a Python string may. A backslash escapes them and itself.
_UNSTORABLE = re.compile("[\\\\\0\ud800-\udfff]")
_ESCAPED = re.compile(r"\\(\\|[0-9a-f]{4})")


def escape_text(value: str) -> str:
    return _UNSTORABLE.sub(_escape_match, value)


def unescape_text(stored: str) -> str:
    return _ESCAPED.sub(_unescape_match, stored) if "\\" in stored else stored


def _escape_match(match: re.Match[str]) -> str:
    return "\\\\" if match[0] == "\\" else f"\\{ord(match[0]):04x}"


def _unescape_match(match: re.Match[str]) -> str:
    return "\\" if match[1] == "\\" else chr(int(match[1], 16))


class Database(PostgresServer):
    """A PostgreSQL database, as one store uses it. Raises the errors of a store."""

    def __init__(self, url: str, sql: SqlFiles, timeout: timedelta) -> None:
        """Raise `StoreError` for a URL that names no database."""
        try:
            super().__init__(url, timeout)
        except ValueError as exc:
            raise StoreError(str(exc)) from None
        self.sql = sql

    async def run(self, attempt: Callable[[float], Awaitable[_T]], *, since: float | None = None) -> _T:
        """Return the result of `attempt(deadline)`, repeated while the server is unavailable.

        Args:
            attempt: called with the deadline, by the event loop's clock.
            since: when the wait began, by the event loop's clock; now by default.

        Raises:
            StoreUnavailable: the server did not come back in time.
            StoreError: the server refused. The driver's error is the cause.
        """
        try:
            try:
                return await self._run_until(attempt, self.deadline(since))
            except DeadlinePassed:
                # One connection got no answer, which says little about the server: try another.
                return await self._run_until(attempt, self.deadline(since))
        except psycopg.Error as exc:
            raise self.map_error(exc) from exc

    async def _run_until(self, attempt: Callable[[float], Awaitable[_T]], deadline: float) -> _T:
        return await self.retry(functools.partial(attempt, deadline), deadline=deadline)

    def map_error(self, exc: psycopg.Error) -> StoreError:
        """Return the error of a store for an error of the driver."""
        said = str(exc).strip() or type(exc).__name__
        match classify(exc):
            case ErrorKind.FULL:
                return StoreFull(f"{self.label} has no room left: free space and save again ({said})")
            case ErrorKind.DENIED:
                return StorePermissionError(
                    f"{self.label} refused: check the user, its password and its rights ({said})"
                )
            case ErrorKind.SCHEMA_MISSING:
                return StoreError(f"{self.label} lacks the store's schema: was it dropped or changed? ({said})")
            case ErrorKind.STATEMENT_TIMEOUT | ErrorKind.SESSION_TIMEOUT:
                return StoreUnavailable(f"{self.label} ended the call because it took too long ({said})")
            case ErrorKind.CONNECTION_LOST if is_read_only(exc):
                limit = f"{self.timeout_s:g} s"
                return StoreUnavailable(
                    f"{self.label} accepted no write within {limit}: it is a standby, or was made read-only ({said})"
                )
            case ErrorKind.CONNECTION_LOST if self.is_out_of_reach(exc):
                return StoreUnavailable(f"{self.label} cannot be reached: check its address, and that it runs ({said})")
            case ErrorKind.CONNECTION_LOST | ErrorKind.CONFLICT:
                return StoreUnavailable(f"{self.label} did not answer within {self.timeout_s:g} s: {said}")
            case _:
                return StoreError(f"{self.label} failed: {said}")


class ReaderPool:
    """A few connections for all but the group commit. Each call is one statement that may be repeated."""

    def __init__(self, database: Database, size: int) -> None:
        self._database = database
        self._slots = asyncio.Semaphore(size)
        self._idle: list[PgConnection] = []
        self._closed = False

    async def execute(self, statement: str, params: Sequence[Any] = ()) -> Rows:
        """Return the rows of a statement.

        Raises:
            StoreError: the server refused it, or was away for too long.
        """
        since = asyncio.get_running_loop().time()
        async with self._slots:
            return await self._database.run(functools.partial(self._attempt, statement, params), since=since)

    async def read(self, statement: str, params: Sequence[Any] = ()) -> Rows:
        """Return the rows of a statement whose cost depends on a caller's wishes or on the number of runs.

        The server ends it before the call is given up, and when its caller is cancelled, so that no session works on
        for a caller that has left. That takes two more round trips.

        Raises:
            StoreUnavailable: it took too long, or the server was away for too long.
            StoreError: the server refused it.
        """
        since = asyncio.get_running_loop().time()
        async with self._slots:
            return await self._database.run(functools.partial(self._attempt_read, statement, params), since=since)

    def close(self) -> None:
        """Close the idle connections. The others are closed when their calls have finished."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _attempt(self, statement: str, params: Sequence[Any], deadline: float) -> Rows:
        async with self._borrow(deadline) as connection:
            return await connection.execute(statement, params, deadline=deadline)

    async def _attempt_read(self, statement: str, params: Sequence[Any], deadline: float) -> Rows:
        async with self._borrow(deadline) as connection:
            timeout = format_read_timeout(deadline, asyncio.get_running_loop())
            await connection.execute(f"begin isolation level read committed read only; {timeout}", deadline=deadline)
            try:
                rows = await connection.execute(statement, params, deadline=deadline, ends_with_caller=True)
                await connection.execute("commit", deadline=deadline)
            except psycopg.Error:
                if not connection.is_closed:
                    await connection.execute("rollback", deadline=deadline)
                raise
            return rows

    @contextlib.asynccontextmanager
    async def _borrow(self, deadline: float) -> AsyncIterator[PgConnection]:
        connection = self._take_idle() or await self._database.connect(deadline=deadline)
        try:
            yield connection
        finally:
            if not connection.is_closed:
                if self._closed or connection.is_standby:
                    connection.close()
                else:
                    self._idle.append(connection)

    def _take_idle(self) -> PgConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
            connection.close()
        return None
