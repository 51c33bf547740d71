"""A battery's tables in a PostgreSQL database."""

import asyncio
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.batteries.database.errors import TablesError, TablesUnavailable
from holdfast.batteries.database.link import Link
from holdfast.batteries.database.tables import Cursor, Schema
from holdfast.batteries.database.thread import Thread

_T = TypeVar("_T")

#: What the URL may override; the store of the checkpoints has the same. A peer that vanished without a word is noticed
#: within a minute.
_DEFAULTS = {
    "fallback_application_name": "holdfast",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "45000",
}

#: The server is away, or gave up this transaction for the sake of others: the same may well succeed in a moment.
_PASSES = ("08", "57P", "53300", "25006", "25P03", "25P04", "40001", "40P01", "55P03")
#: Not in a moment, but nothing is wrong with what was asked: no room, no memory, a timeout of the server's own.
_LATER = ("53", "57014")

# libpq tells no code for why it could not connect. Where the server says it in another language, it is waited for.
_KEPT_OUT = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(role|database) .* does not exist"
)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
#: Whatever waited long for others still gets its own try.
_A_TRY = 1.0


class PostgresTables:
    """One connection on a thread of its own, opened again when it was lost. Works behind a pooler."""

    def __init__(self, url: str, *, schema: str = "holdfast", patience: timedelta = timedelta(seconds=30)) -> None:
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
            self._conninfo = make_conninfo("", **(_DEFAULTS | conninfo_to_dict(url)))
        except psycopg.Error:
            # What the driver says may hold the password.
            raise TablesError("this is no URL of a PostgreSQL database: use postgresql://...") from None
        self._schema, self._patience = schema, patience.total_seconds()
        self._thread = Thread()
        self._link: Link | None = None
        #: How long the statement under way may take; less for a call that has waited for long already.
        self._limit = self._patience

    async def open(self, schema: Schema) -> None:
        """Make the tables, or bring them up to date. Processes that do so at once wait for each other.

        Tables that are up to date are not touched, so that their user needs no right to make any.
        """

        def prepare(cursor: Cursor) -> None:
            if _version(cursor, self._schema, schema) != len(schema.steps):
                # The lock under which the store of the checkpoints makes its part of the schema.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"holdfast:{self._schema}",))
                _migrate(cursor, self._schema, schema)

        if self._thread.closed.is_set():
            self._thread = Thread()
        await self.write(prepare)

    async def write(self, work: Callable[[Cursor], _T], *, alone: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction, alone among those that have a name in common."""
        # In one order everywhere, so that no two wait for each other.
        keys = sorted(zlib.crc32(f"{self._schema}.{name}".encode(errors="surrogatepass")) for name in set(alone))

        def locked(cursor: Cursor) -> _T:
            for key in keys:
                cursor.execute("SELECT pg_advisory_xact_lock(?)", (key,))
            return work(cursor)

        return await self._on_thread(lambda deadline: self._write(locked, deadline))

    async def read(self, work: Callable[[Cursor], _T]) -> _T:
        """Run `work`, which only reads."""
        return await self._on_thread(lambda deadline: self._read(work))

    async def close(self) -> None:
        """Finish what is under way, then let go of the connection. Cancelled, it cuts the connection.

        May be called again.
        """
        if self._thread.closed.is_set():
            return
        try:
            await self._watched(self._thread.end(self._drop))
        except asyncio.CancelledError:
            if self._link is not None:
                self._link.cut()
            raise

    async def _on_thread(self, attempt: Callable[[float], _T]) -> _T:
        """What `attempt` gives, which is told when patience ends; made again while the server is away."""
        asked_at = time.monotonic()

        def persist() -> _T:
            now = time.monotonic()
            deadline = max(asked_at + self._patience, now + min(self._patience, _A_TRY))
            self._limit = deadline - now
            return self._persist(lambda: attempt(deadline), deadline)

        try:
            return await self._watched(self._thread.do(persist))
        except psycopg.Error as exc:
            if _passes(exc) or (exc.sqlstate or "").startswith(_LATER):
                raise TablesUnavailable(f"the database did not answer, try again: {exc}") from exc
            raise TablesError(f"could not use the tables in schema {self._schema}: {exc}") from exc

    async def _watched(self, work: asyncio.Future[_T]) -> _T:
        """Wait for `work`, and cut the connection when the server owes an answer for too long."""
        loop = asyncio.get_running_loop()
        watch: asyncio.TimerHandle

        def look() -> None:
            nonlocal watch
            link, left = self._link, self._limit
            if link is not None:
                left -= link.silent_for
                if left <= 0:
                    link.cut()
            watch = loop.call_later(left if left > 0 else _A_TRY, look)

        watch = loop.call_later(self._limit, look)
        try:
            return await work
        finally:
            watch.cancel()

    # -- on the thread ------------------------------------------------------------------------------------------

    def _persist(self, attempt: Callable[[], _T], deadline: float) -> _T:
        pause = _FIRST_PAUSE
        while True:
            try:
                return attempt()
            except psycopg.Error as exc:
                left = deadline - time.monotonic()
                if left <= 0 or not _passes(exc) or self._thread.closed.wait(min(pause, left)):
                    raise
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
        link = self._connected()
        try:
            # What was read before the wait for a lock may not count after it, whatever the database's own default is.
            link.execute(f'BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = "{self._schema}"')
            yield link
        except BaseException as exc:
            with suppress(psycopg.Error):  # then the link is lost
                link.execute("ROLLBACK")
            if isinstance(exc, psycopg.errors.ReadOnlySqlTransaction):
                # A standby, in the middle of a failover: the next connection may reach the right server.
                self._drop()
            raise

    def _was_committed(self, number: int, deadline: float) -> bool:
        """Whether the transaction of this number was, whose end nobody was told.

        Raises:
            TablesUnavailable: the server does not say.
        """

        def ask() -> bool:
            [(state,)] = self._connected().execute("SELECT txid_status(?)", (number,))
            if state == "in progress":
                raise psycopg.OperationalError("it is still under way")
            return bool(state == "committed")

        try:
            return self._persist(ask, max(deadline, time.monotonic() + _A_TRY))
        except psycopg.Error as exc:
            raise TablesUnavailable(f"it is not known whether this was written, the server is away: {exc}") from exc

    def _connected(self) -> Link:
        if self._link is None or self._link.is_lost:
            self._drop()
            self._link = Link(self._conninfo)
        return self._link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _passes(exc: psycopg.Error) -> bool:
    """Whether the same may well succeed in a moment."""
    if exc.sqlstate is None:
        return isinstance(exc, psycopg.OperationalError) and not _KEPT_OUT.search(str(exc))
    return exc.sqlstate.startswith(_PASSES)


def _version(cursor: Cursor, place: str, schema: Schema) -> int:
    """The version found; zero if the tables are not there yet."""
    tables = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = ? AND tablename = 'battery'"
    if not cursor.execute(tables, (place,)):
        return 0
    rows = cursor.execute("SELECT version FROM battery WHERE name = ?", (schema.battery,))
    version: int = rows[0][0] if rows else 0
    if version > len(schema.steps):
        raise TablesError(f"a newer holdfast made the {schema.battery} tables (version {version}): upgrade holdfast")
    return version


def _migrate(cursor: Cursor, place: str, schema: Schema) -> None:
    if not cursor.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = ?", (place,)):
        cursor.execute(f'CREATE SCHEMA "{place}"')
    cursor.execute("CREATE TABLE IF NOT EXISTS battery (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    for step in schema.steps[_version(cursor, place, schema) :]:
        for statement in step:
            cursor.execute(statement)
    cursor.execute(
        "INSERT INTO battery VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        (schema.battery, len(schema.steps)),
    )
