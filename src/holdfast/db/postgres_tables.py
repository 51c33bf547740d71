"""Tables of batteries in PostgreSQL: how the server is reached, and the grants that a role needs."""

import asyncio
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from holdfast.db.postgres_connection import (
    DeadlinePassed,
    ErrorKind,
    PgConnection,
    classify,
    format_read_timeout,
    is_read_only,
    is_transient,
    is_unreachable,
)
from holdfast.db.postgres_url import parse_postgres_url, parse_schema
from holdfast.db.tables import Cursor, Schema, TablesError, TablesUnavailable, check_text
from holdfast.ids import draw_between

_T = TypeVar("_T")

#: The URL may override these. TCP notices a peer that vanished within a minute. None of them is a setting of the
#: server's session, so a pooler may hand every transaction to another session.
_CONNINFO_DEFAULTS = {
    "fallback_application_name": "holdfast",
    "client_encoding": "utf8",
    "connect_timeout": "10",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "45000",
}

_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.02, 1.0
#: A request that waited past its deadline still gets one attempt of this length.
_MIN_ATTEMPT_S = 1.0


class PostgresServer:
    """How to reach a database, and how long to wait for it."""

    def __init__(self, url: str, timeout: timedelta) -> None:
        """Connect to nothing yet.

        Raises:
            ValueError: the URL names no database. The text does not quote the URL, which may hold a password.
        """
        parts = parse_postgres_url(url)
        self._conninfo = make_conninfo("", **(_CONNINFO_DEFAULTS | parts))
        self.timeout_s: float = timeout.total_seconds()
        #: Whether a server has answered before. If so it may come back; if not, the address may be wrong.
        self._was_reached = False
        #: For messages; contains no secret.
        self.label: str = f"PostgreSQL ({parts.get('dbname', 'default')} at {parts.get('host', 'localhost')})"

    async def connect_driver(self) -> psycopg.AsyncConnection:
        """Return a connection in autocommit mode that prepares nothing.

        Raises:
            psycopg.Error: the server is unreachable, or refuses the connection.
        """
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        self._was_reached = True
        return connection

    async def connect_user(self) -> "psycopg.AsyncConnection[Any]":
        """Return a connection for code of the user. Raises as `connect_driver`."""
        return await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None)

    def connect_user_in_thread(self) -> "psycopg.Connection[Any]":
        """Return a connection for code of the user that runs in a thread. Raises as `connect_driver`."""
        return psycopg.Connection.connect(self._conninfo, prepare_threshold=None)

    def is_out_of_reach(self, exc: psycopg.Error) -> bool:
        """Return whether no server listens at the address, and none ever did."""
        return not self._was_reached and is_unreachable(exc)

    async def connect(self, *, deadline: float) -> PgConnection:
        """Return a new connection. Raises as `connect_driver`, also when the deadline passes."""
        try:
            async with asyncio.timeout_at(deadline):
                return PgConnection(await self.connect_driver())
        except TimeoutError:
            raise DeadlinePassed() from None

    def deadline(self, since: float | None = None) -> float:
        """Return `since` (default: now) plus the timeout, but at least one attempt from now."""
        now = asyncio.get_running_loop().time()
        return max((since or now) + self.timeout_s, now + min(self.timeout_s, _MIN_ATTEMPT_S))

    async def retry(
        self,
        attempt: Callable[[], Awaitable[_T]],
        *,
        deadline: float,
        can_retry: Callable[[psycopg.Error], bool] = is_transient,
    ) -> _T:
        """Return the result of `attempt`, repeated with backoff after transient errors until the deadline.

        A server that was never reached, and whose address refuses the connection, is not waited for.

        Raises:
            psycopg.Error: the last that says more than that the deadline passed.
        """
        loop = asyncio.get_running_loop()
        pause = _MIN_BACKOFF_S
        last: psycopg.Error | None = None
        while True:
            try:
                return await attempt()
            except psycopg.Error as exc:
                left = deadline - loop.time()
                if last is None or not isinstance(exc, DeadlinePassed):
                    last = exc
                if left <= 0 or not can_retry(exc) or self.is_out_of_reach(exc):
                    raise last from None
            await asyncio.sleep(min(pause * draw_between(0.5, 1), left))
            pause = min(2 * pause, _MAX_BACKOFF_S)


#: Nothing is wrong with the statement: the same call may succeed later.
_UNAVAILABLE = frozenset(
    {
        ErrorKind.CONNECTION_LOST,
        ErrorKind.CONFLICT,
        ErrorKind.SESSION_TIMEOUT,
        ErrorKind.STATEMENT_TIMEOUT,
        ErrorKind.FULL,
        ErrorKind.NO_RESOURCES,
    }
)


class _PgCursor:
    """One attempt at a transaction."""

    def __init__(self, connection: PgConnection, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        check_text(parameters)
        first, *rest = sql.split("?")
        statement = first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
        return await self.connection.execute(statement, parameters, deadline=self.deadline)


class PostgresTables:
    """Uses one connection, one transaction at a time, and reconnects when it is lost. Works behind a pooler."""

    durable = True

    def __init__(self, url: str, *, schema: str | None = None, timeout: timedelta = timedelta(seconds=30)) -> None:
        """Connect to nothing yet.

        Args:
            url: as libpq takes it, and `schema=NAME` among its options.
            schema: where the tables are; by default the schema in the URL, else `holdfast`.
            timeout: how long a call waits for a server that does not answer before it raises `TablesUnavailable`.

        Raises:
            TablesError: the URL names no database, or the schema's name cannot be used.
        """
        schema = parse_schema(url) if schema is None else schema
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", schema):
            raise TablesError(f"{schema!r} cannot be a schema name: use a-z, 0-9 and _")
        try:
            self._server = PostgresServer(url, timeout)
        except ValueError as exc:
            raise TablesError(str(exc)) from None
        self._schema = schema
        self._lock = asyncio.Lock()
        self._connection: PgConnection | None = None
        self._closed = False

    async def open(self, schema: Schema) -> None:
        """Create or migrate the tables. Processes that do so at the same time wait for each other.

        Tables that are up to date are not touched, so their user needs no right to create any.
        """
        if self._closed:
            self._closed, self._lock = False, asyncio.Lock()
        await self.transaction(partial(_prepare, self._schema, schema))

    async def read_version(self, schema: Schema) -> int:
        """Return the version of the tables; zero if there are none."""
        return await self.read(partial(_read_version, pg_schema=self._schema, schema=schema))

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in one transaction. Transactions with a lock name in common run one after the other."""
        # Sorted, so that two transactions never wait for each other.
        keys = sorted(zlib.crc32(f"{self._schema}.{name}".encode(errors="surrogatepass")) for name in set(lock))

        async def write(cursor: _PgCursor) -> _T:
            [(transaction_id, started)] = await cursor.execute(
                "SELECT txid_current(), pg_postmaster_start_time()::text"
            )
            for key in keys:
                await cursor.execute("SELECT pg_advisory_xact_lock(?)", (key,))
            result = await work(cursor)
            try:
                await cursor.execute("COMMIT")
            except psycopg.OperationalError:
                if not await self._was_committed(transaction_id, started, cursor.deadline):
                    raise
            return result

        return await self._run(write)

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads, in one transaction. The server ends it before the call is given up."""

        async def read(cursor: _PgCursor) -> _T:
            await cursor.execute(format_read_timeout(cursor.deadline, asyncio.get_running_loop()))
            result = await work(cursor)
            await cursor.execute("COMMIT")
            return result

        return await self._run(read)

    async def close(self) -> None:
        """Finish the calls in progress, then disconnect. If cancelled, disconnect at once. May be repeated."""
        if self._closed:
            return
        self._closed = True
        try:
            async with self._lock:
                pass
        finally:
            self._disconnect()

    async def _run(self, transact: Callable[[_PgCursor], Awaitable[_T]]) -> _T:
        """Run one transaction, and repeat it after an outage. Once begun it ends, even if its caller is cancelled."""
        if self._closed:
            raise TablesError("the tables were closed")
        since = asyncio.get_running_loop().time()
        await self._lock.acquire()
        running = asyncio.create_task(self._retry(transact, since))
        running.add_done_callback(self._on_done)
        return await asyncio.shield(running)

    def _on_done(self, running: "asyncio.Task[Any]") -> None:
        self._lock.release()
        if not running.cancelled():
            running.exception()  # a cancelled caller does not retrieve it

    async def _retry(self, transact: Callable[[_PgCursor], Awaitable[_T]], since: float) -> _T:
        deadline = self._server.deadline(since)
        try:
            return await self._server.retry(
                partial(self._attempt, transact, deadline), deadline=deadline, can_retry=self._can_retry
            )
        except psycopg.Error as exc:
            if classify(exc) in _UNAVAILABLE:
                raise TablesUnavailable(f"the database did not answer, try again: {exc}") from exc
            raise TablesError(f"could not use the tables in schema {self._schema}: {exc}") from exc

    def _can_retry(self, exc: psycopg.Error) -> bool:
        return not self._closed and (is_transient(exc) or classify(exc) is ErrorKind.SESSION_TIMEOUT)

    async def _attempt(self, transact: Callable[[_PgCursor], Awaitable[_T]], deadline: float) -> _T:
        cursor = _PgCursor(await self._connect(deadline), deadline)
        try:
            # Rows read before the wait for a lock may be stale, so the database's own default does not count.
            await cursor.execute(f'BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path = "{self._schema}"')
            return await transact(cursor)
        except BaseException as exc:
            if isinstance(exc, psycopg.Error) and is_read_only(exc):
                cursor.connection.close()  # a standby during a failover: the next connection may reach the primary
            if not cursor.connection.is_closed:
                await self._roll_back(cursor)
            raise

    async def _roll_back(self, cursor: _PgCursor) -> None:
        try:
            await cursor.execute("ROLLBACK")
        except psycopg.Error:
            cursor.connection.close()

    async def _was_committed(self, transaction_id: int, started: str, deadline: float) -> bool:
        """Return whether a transaction whose answer was lost was committed.

        Args:
            started: the start time of the server that ran the transaction. After a crash or a failover, the same id may
                belong to another transaction.

        Raises:
            TablesUnavailable: the server does not answer, or another one does.
        """
        deadline = max(deadline, asyncio.get_running_loop().time() + _MIN_ATTEMPT_S)

        async def ask() -> bool:
            cursor = _PgCursor(await self._connect(deadline), deadline)
            if await cursor.execute("SELECT pg_postmaster_start_time()::text") != [(started,)]:
                raise TablesUnavailable("the outcome of this write is unknown: the server was restarted or replaced")
            [(status,)] = await cursor.execute("SELECT txid_status(?::bigint)", (transaction_id,))
            if status == "in progress":
                raise psycopg.OperationalError("the transaction is still in progress")
            return bool(status == "committed")

        try:
            return await self._server.retry(ask, deadline=deadline, can_retry=self._can_retry)
        except psycopg.Error as exc:
            raise TablesUnavailable(f"the outcome of this write is unknown: the server is unavailable: {exc}") from exc

    async def _connect(self, deadline: float) -> PgConnection:
        if self._connection is None or self._connection.is_closed:
            self._disconnect()
            self._connection = await self._server.connect(deadline=deadline)
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


async def _prepare(pg_schema: str, schema: Schema, cursor: Cursor) -> None:
    if await _read_version(cursor, pg_schema, schema) != len(schema.migrations):
        # The checkpoint store takes the same lock to create its part of the schema.
        await cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", (f"holdfast:{pg_schema}",))
        try:
            await _migrate(cursor, pg_schema, schema)
        except InsufficientPrivilege as exc:
            raise TablesError(
                f"the {schema.name} tables in schema {pg_schema} are missing or of an older version, and this user"
                f" may not migrate them: run `holdfast migrate` as the owner ({exc})"
            ) from exc


async def _read_version(cursor: Cursor, pg_schema: str, schema: Schema) -> int:
    """Return the version of the tables; zero if there are none."""
    tables = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = ? AND tablename = 'battery'"
    if not await cursor.execute(tables, (pg_schema,)):
        return 0
    rows = await cursor.execute("SELECT version FROM battery WHERE name = ?", (schema.name,))
    version: int = rows[0][0] if rows else 0
    if version > len(schema.migrations):
        raise TablesError(f"a newer holdfast made the {schema.name} tables (version {version}): upgrade holdfast")
    return version


async def _migrate(cursor: Cursor, pg_schema: str, schema: Schema) -> None:
    if not await cursor.execute("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = ?", (pg_schema,)):
        await cursor.execute(f'CREATE SCHEMA "{pg_schema}"')
    await cursor.execute("CREATE TABLE IF NOT EXISTS battery (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    for step in schema.migrations[await _read_version(cursor, pg_schema, schema) :]:
        for statement in step:
            await cursor.execute(statement)
    await cursor.execute(
        "INSERT INTO battery VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        (schema.name, len(schema.migrations)),
    )


#: The versions of the tables, which only their owner changes.
_VERSION_TABLES = ("schema_version", "battery")

_WORKER_RIGHTS = {"tables": "select, insert, update, delete", "sequences": "usage"}
_READER_RIGHTS = {"tables": "select"}


def make_grants(schema: str, *, worker: str = "", reader: str = "") -> Iterator[str]:
    """Yield the statements, for the owner of the tables to execute. They may be repeated.

    Neither role may create, alter or drop anything. Functions need no grant: every role may call them, and they run
    with the rights of their caller. So does NOTIFY.
    """
    for role, rights in ((worker, _WORKER_RIGHTS), (reader, _READER_RIGHTS)):
        if role:
            yield from _grant(_quote(schema), _quote(role), rights)
    if worker:
        versions = ", ".join(f"{_quote(schema)}.{table}" for table in _VERSION_TABLES)
        yield f"revoke insert, update, delete on {versions} from {_quote(worker)}"


def _grant(schema: str, role: str, rights: dict[str, str]) -> Iterator[str]:
    yield f"grant usage on schema {schema} to {role}"
    for kind, granted in rights.items():
        yield f"grant {granted} on all {kind} in schema {schema} to {role}"
        # For what a later migration of the same owner creates.
        yield f"alter default privileges in schema {schema} grant {granted} on {kind} to {role}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
