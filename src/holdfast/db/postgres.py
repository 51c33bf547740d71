"""A connection to a PostgreSQL server that does not have to be waited for.

A battery's tables in a PostgreSQL database.
"""

import asyncio
import contextlib
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.db.errors import TablesError, TablesUnavailable
from holdfast.db.tables import Cursor, Schema, check_text
from holdfast.db.thread import DatabaseThread


class PgConnection:
    """Used by one thread. Another may cut it: then the statement under way fails at once, as if the server had gone."""

    def __init__(self, conninfo: str) -> None:
        """Raises `psycopg.Error` if there is none to be had."""
        # A pooler may give each transaction another server connection: nothing may be prepared on one of them.
        self._connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        try:
            #: Of our own, so that it is still the same one when the driver has closed its own in the meantime.
            self._socket = socket.socket(fileno=os.dup(self._connection.fileno()))
        except OSError as exc:
            self._connection.close()
            raise psycopg.OperationalError(f"a connection was made, but it cannot be used: {exc}") from exc
        self._socket_lock = threading.Lock()
        self._waiting_since: float | None = None

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """Run a statement, with `?` where a parameter goes, and return its rows, if it has any."""
        check_text(parameters)
        self._waiting_since = time.monotonic()
        try:
            cursor = self._connection.execute(sql.replace("?", "%s").encode(), parameters or None)
            return cursor.fetchall() if cursor.description is not None else ()
        finally:
            self._waiting_since = None

    @property
    def is_closed(self) -> bool:
        return self._connection.closed

    @property
    def waiting_for(self) -> float:
        """For how many seconds the server has owed an answer."""
        asked_at = self._waiting_since
        return 0.0 if asked_at is None else time.monotonic() - asked_at

    def abort(self) -> None:
        """From any thread."""
        with self._socket_lock, contextlib.suppress(OSError):  # the other side may have been quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._socket_lock:
            self._socket.close()
        self._connection.close()


_T = TypeVar("_T")

#: What the URL may override; the store of the checkpoints has the same. A peer that vanished without a word is noticed
#: within a minute.
_CONNINFO_DEFAULTS = {
    "fallback_application_name": "holdfast",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "45000",
}

#: The server is away, or gave up this transaction for the sake of others: the same may well succeed in a moment.
_TRANSIENT_SQLSTATES = ("08", "57P", "53300", "25006", "25P03", "25P04", "40001", "40P01", "55P03")
#: Not in a moment, but nothing is wrong with what was asked: no room, no memory, a timeout of the server's own.
_UNAVAILABLE_SQLSTATES = ("53", "57014")

# libpq tells no code for why it could not connect. Where the server says it in another language, it is waited for.
_ACCESS_DENIED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) .* does not exist"
)

_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.02, 1.0
#: Whatever waited long for others still gets its own try.
_MIN_ATTEMPT_S = 1.0


class PostgresTables:
    """One connection on a thread of its own, opened again when it was lost. Works behind a pooler."""

    def __init__(self, url: str, *, schema: str = "holdfast", timeout: timedelta = timedelta(seconds=30)) -> None:
        """Nothing is opened yet.

        Args:
            patience: how long a call waits for a server that is away, or for its answer to one statement, before it
                raises `TablesUnavailable`.

        Raises:
            TablesError: the URL names no database, or the schema's name cannot be used.
        """
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", schema):
            raise TablesError(f"{schema!r} cannot be a schema name: use a-z, 0-9 and _")
        try:
            self._conninfo = make_conninfo("", **(_CONNINFO_DEFAULTS | conninfo_to_dict(url)))
        except psycopg.Error:
            # What the driver says may hold the password.
            raise TablesError("this is no URL of a PostgreSQL database: use postgresql://...") from None
        self._schema, self._timeout = schema, timeout.total_seconds()
        self._thread = DatabaseThread()
        self._connection: PgConnection | None = None
        #: How long the statement under way may take; less for a call that has waited for long already.
        self._statement_timeout = self._timeout

    async def open(self, schema: Schema) -> None:
        """Make the tables, or bring them up to date. Processes that do so at once wait for each other.

        Tables that are up to date are not touched, so that their user needs no right to make any.
        """

        def prepare(cursor: Cursor) -> None:
            if _find_version(cursor, self._schema, schema) != len(schema.migrations):
                # The lock under which the store of the checkpoints makes its part of the schema.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"holdfast:{self._schema}",))
                _migrate(cursor, self._schema, schema)

        if self._thread.closed.is_set():
            self._thread = DatabaseThread()
        await self.transaction(prepare)

    async def transaction(self, work: Callable[[Cursor], _T], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction, alone among those that have a name in common."""
        # In one order everywhere, so that no two wait for each other.
        keys = sorted(zlib.crc32(f"{self._schema}.{name}".encode(errors="surrogatepass")) for name in set(lock))

        def locked(cursor: Cursor) -> _T:
            for key in keys:
                cursor.execute("SELECT pg_advisory_xact_lock(?)", (key,))
            return work(cursor)

        return await self._run_on_thread(lambda deadline: self._execute_transaction(locked, deadline))

    async def read(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work`, which only reads."""
        return await self._run_on_thread(lambda deadline: self._execute_read(work))

    async def close(self) -> None:
        """Finish what is under way, then let go of the connection. Cancelled, it cuts the connection.

        May be called again.
        """
        if self._thread.closed.is_set():
            return
        try:
            await self._await_with_timeout(self._thread.shutdown(self._disconnect))
        except asyncio.CancelledError:
            if self._connection is not None:
                self._connection.abort()
            raise

    async def _run_on_thread(self, attempt: Callable[[float], _T]) -> _T:
        """What `attempt` gives, which is told when patience ends; made again while the server is away."""
        asked_at = time.monotonic()

        def persist() -> _T:
            now = time.monotonic()
            deadline = max(asked_at + self._timeout, now + min(self._timeout, _MIN_ATTEMPT_S))
            self._statement_timeout = deadline - now
            return self._retry(lambda: attempt(deadline), deadline)

        try:
            return await self._await_with_timeout(self._thread.submit(persist))
        except psycopg.Error as exc:
            if _is_transient(exc) or (exc.sqlstate or "").startswith(_UNAVAILABLE_SQLSTATES):
                raise TablesUnavailable(f"the database did not answer, try again: {exc}") from exc
            raise TablesError(f"could not use the tables in schema {self._schema}: {exc}") from exc

    async def _await_with_timeout(self, work: asyncio.Future[_T]) -> _T:
        """Wait for `work`, and cut the connection when the server owes an answer for too long."""
        loop = asyncio.get_running_loop()
        watch: asyncio.TimerHandle

        def look() -> None:
            nonlocal watch
            link, left = self._connection, self._statement_timeout
            if link is not None:
                left -= link.waiting_for
                if left <= 0:
                    link.abort()
            watch = loop.call_later(left if left > 0 else _MIN_ATTEMPT_S, look)

        watch = loop.call_later(self._statement_timeout, look)
        try:
            return await work
        finally:
            watch.cancel()

    # -- on the thread ------------------------------------------------------------------------------------------

    def _retry(self, attempt: Callable[[], _T], deadline: float) -> _T:
        pause = _MIN_BACKOFF_S
        while True:
            try:
                return attempt()
            except psycopg.Error as exc:
                left = deadline - time.monotonic()
                if left <= 0 or not _is_transient(exc) or self._thread.closed.wait(min(pause, left)):
                    raise
            pause = min(2 * pause, _MAX_BACKOFF_S)

    def _execute_read(self, work: Callable[[Cursor], _T]) -> _T:
        with self._transaction_scope() as cursor:
            result = work(cursor)
            cursor.execute("COMMIT")
        return result

    def _execute_transaction(self, work: Callable[[Cursor], _T], deadline: float) -> _T:
        with self._transaction_scope() as cursor:
            [(number,)] = cursor.execute("SELECT txid_current()")
            result = work(cursor)
            try:
                cursor.execute("COMMIT")
            except psycopg.OperationalError:
                if not self._was_committed(number, deadline):
                    raise
        return result

    @contextmanager
    def _transaction_scope(self) -> Iterator[Cursor]:
        link = self._ensure_connected()
        try:
            # What was read before the wait for a lock may not count after it, whatever the database's own default is.
            link.execute(f'BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = "{self._schema}"')
            yield link
        except BaseException as exc:
            with suppress(psycopg.Error):  # then the link is lost
                link.execute("ROLLBACK")
            if isinstance(exc, psycopg.errors.ReadOnlySqlTransaction):
                # A standby, in the middle of a failover: the next connection may reach the right server.
                self._disconnect()
            raise

    def _was_committed(self, number: int, deadline: float) -> bool:
        """Whether the transaction of this number was, whose end nobody was told.

        Raises:
            TablesUnavailable: the server does not say.
        """

        def ask() -> bool:
            [(state,)] = self._ensure_connected().execute("SELECT txid_status(?)", (number,))
            if state == "in progress":
                raise psycopg.OperationalError("it is still under way")
            return bool(state == "committed")

        try:
            return self._retry(ask, max(deadline, time.monotonic() + _MIN_ATTEMPT_S))
        except psycopg.Error as exc:
            raise TablesUnavailable(f"it is not known whether this was written, the server is away: {exc}") from exc

    def _ensure_connected(self) -> PgConnection:
        if self._connection is None or self._connection.is_closed:
            self._disconnect()
            self._connection = PgConnection(self._conninfo)
        return self._connection

    def _disconnect(self) -> None:
        link, self._connection = self._connection, None
        if link is not None:
            link.close()


def _is_transient(exc: psycopg.Error) -> bool:
    """Whether the same may well succeed in a moment."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError) and not _ACCESS_DENIED.search(str(exc))
    return exc.sqlstate.startswith(_TRANSIENT_SQLSTATES)


def _find_version(cursor: Cursor, pg_schema: str, schema: Schema) -> int:
    """The version found; zero if the tables are not there yet."""
    tables = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = ? AND tablename = 'battery'"
    if not cursor.execute(tables, (pg_schema,)):
        return 0
    rows = cursor.execute("SELECT version FROM battery WHERE name = ?", (schema.name,))
    version: int = rows[0][0] if rows else 0
    if version > len(schema.migrations):
        raise TablesError(f"a newer holdfast made the {schema.name} tables (version {version}): upgrade holdfast")
    return version


def _migrate(cursor: Cursor, pg_schema: str, schema: Schema) -> None:
    if not cursor.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = ?", (pg_schema,)):
        cursor.execute(f'CREATE SCHEMA "{pg_schema}"')
    cursor.execute("CREATE TABLE IF NOT EXISTS battery (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    for step in schema.migrations[_find_version(cursor, pg_schema, schema) :]:
        for statement in step:
            cursor.execute(statement)
    cursor.execute(
        "INSERT INTO battery VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        (schema.name, len(schema.migrations)),
    )
