"""The SQL files of this package, read for the schema that a store uses.

The server a store talks to: how to connect to it, and how long to wait when it does not answer.

The schema a store keeps its tables in: created, migrated, and refused when a newer holdfast wrote it.

How the schema stands: its version, its size, and whether its indexes can be used.
"""

import asyncio
import functools
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGresult

from holdfast.checkpoint.errors import SchemaTooNew, StoreError, StoreUnavailable
from holdfast.checkpoint.store import StoreHealth
from holdfast.stores.postgres.connection import PgConnection, is_connection_lost, is_read_only, is_transient, map_error

_SQL_FOLDER = resources.files(__package__) / "sql"


class SqlFiles:
    """The SQL of one store. The files are written for the schema `holdfast`; another name is put in here."""

    def __init__(self, schema: str) -> None:
        """Raises `ValueError` for a name that PostgreSQL would have to see quoted."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", schema):
            raise ValueError(f"{schema!r} cannot be a schema: use up to 48 small letters, digits and underscores")
        self.schema = schema

    @functools.cached_property
    def migrations(self) -> list[str]:
        """In order. After the nth of them the schema has version n."""
        return [self._read(file) for file in _list_files("migrations")]

    @functools.cached_property
    def functions(self) -> list[str]:
        """Of the newest version. In any order, so they are created without a look into their bodies."""
        return [self._read(file) for file in _list_files("functions")]

    def load_query(self, name: str) -> str:
        return self._read(_SQL_FOLDER / "queries" / f"{name}.sql")

    def with_schema(self, sql: str) -> str:
        """A statement that is too small for a file, for this schema."""
        return re.sub(r"\bholdfast\.", f'"{self.schema}".', sql.replace("'holdfast'", f"'{self.schema}'"))

    def _read(self, file: Traversable) -> str:
        return self.with_schema(file.read_text(encoding="utf-8"))


def _list_files(folder: str) -> list[Traversable]:
    return sorted((_SQL_FOLDER / folder).iterdir(), key=lambda file: file.name)


_T = TypeVar("_T")

#: What the URL may override. A peer that vanished without a word is noticed within a minute; nothing here is a setting
#: of the server's session, so that a pooler may give every transaction to another one.
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
_MIN_ATTEMPT_S = 1.0


class Database:
    """A PostgreSQL database, as one store uses it."""

    def __init__(self, url: str, sql: SqlFiles, timeout: timedelta) -> None:
        """Raises `StoreError` for a URL that names no database."""
        try:
            parts = conninfo_to_dict(url)
        except psycopg.Error as exc:
            # What libpq quotes may be the password.
            said = re.split("[\"'«„“:]", str(exc))[0].strip()
            raise StoreError(f"this is no URL of a PostgreSQL database: {said}") from None
        self.conninfo = make_conninfo("", **(_CONNINFO_DEFAULTS | parts))
        self.sql = sql
        self.timeout_s = timeout.total_seconds()
        #: For messages; says nothing secret.
        self.label = f"PostgreSQL ({parts.get('dbname', 'default')} at {parts.get('host', 'localhost')})"

    async def connect(self) -> psycopg.AsyncConnection:
        """A connection on which every statement is a transaction, and nothing is prepared.

        Raises:
            psycopg.Error: there is none to be had.
        """
        return await psycopg.AsyncConnection.connect(self.conninfo, autocommit=True, prepare_threshold=None)

    async def retry(self, attempt: Callable[[], Awaitable[_T]], *, since: float | None = None) -> _T:
        """What `attempt` gives, made again while the server is away, for as long as the store's patience lasts.

        Args:
            since: when the waiting began, by the event loop's clock; now, unless it is given.

        Raises:
            StoreUnavailable: it did not come back in time.
            StoreError: it refused. The driver's error is the cause.
        """
        loop = asyncio.get_running_loop()
        deadline = self.deadline(since)
        pause, last = _MIN_BACKOFF_S, psycopg.Error("it was not heard from")
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await attempt()
            except TimeoutError as exc:
                raise self._make_timeout_error(last) from exc
            except psycopg.Error as exc:
                if not is_transient(exc):
                    raise map_error(exc, self.label) from exc
                last = exc
                # A port that refuses at once never lets the timeout come through.
                if loop.time() >= deadline:
                    raise self._make_timeout_error(last) from exc
            await asyncio.sleep(min(pause * random.uniform(0.5, 1), max(0, deadline - loop.time())))  # noqa: S311
            pause = min(2 * pause, _MAX_BACKOFF_S)

    def deadline(self, since: float | None = None) -> float:
        """When patience ends that began then, or now. Whatever waited long for others still gets its own try."""
        now = asyncio.get_running_loop().time()
        return max((since or now) + self.timeout_s, now + min(self.timeout_s, _MIN_ATTEMPT_S))

    def _make_timeout_error(self, last: psycopg.Error) -> StoreUnavailable:
        said = str(last).strip()
        if is_read_only(last):
            refused = f"{self.label} took no write within {self.timeout_s:g} s: it is a standby, or was made read-only"
            return StoreUnavailable(f"{refused} ({said})")
        return StoreUnavailable(f"{self.label} did not answer within {self.timeout_s:g} s: {said}")


class ReaderPool:
    """A few connections for all that is not the group commit. Each call is one statement, and may be repeated."""

    def __init__(self, database: Database, size: int) -> None:
        self._database = database
        self._slots = asyncio.Semaphore(size)
        self._idle: list[PgConnection] = []
        self._closed = False

    async def call(self, statement: bytes, types: Sequence[int] = (), values: Sequence[bytes | None] = ()) -> PGresult:
        """What the statement gives, in binary form.

        Raises:
            StoreError: the server refused it, or was away for too long.
        """
        since = asyncio.get_running_loop().time()

        async def attempt() -> PGresult:
            link = self._idle.pop() if self._idle else PgConnection(await self._database.connect())
            try:
                result = await link.call(statement, types, values, deadline=self._database.deadline(since))
            except BaseException as exc:
                # Gone, or given up in the middle of an answer, or still good.
                await self._release(link, usable=isinstance(exc, psycopg.Error) and not is_connection_lost(exc))
                raise
            await self._release(link, usable=True)
            return result

        async with self._slots:
            # Nearly always there is a connection, and it works. If it is lost, the others are likely to be so as well.
            for _ in range(len(self._idle)):
                try:
                    return await attempt()
                except psycopg.Error as exc:
                    if not is_transient(exc):
                        raise map_error(exc, self._database.label) from exc
            return await self._database.retry(attempt, since=since)

    async def close(self) -> None:
        """Calls under way are finished, and let go of their connections then."""
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

    async def _release(self, connection: PgConnection, *, usable: bool) -> None:
        if usable and not self._closed and not connection.is_standby:
            self._idle.append(connection)
        else:
            await connection.close()


async def prepare_schema(database: Database) -> None:
    """Bring the schema to the version this code knows. Any number of processes may do this at once.

    A schema that has this version already is not touched, so that its user needs no right to change it.

    Raises:
        SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
        StoreError: the server refused, or was away for too long.
    """
    await database.retry(lambda: _try_prepare(database))


async def _try_prepare(database: Database) -> None:
    known = len(database.sql.migrations)
    connection = await database.connect()
    async with connection:
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreError(f"{database.label} does not store UTF-8: create it with encoding 'UTF8'")
        if await _read_version(connection, database) != known:
            # Whatever the database's default is: what others did while this one waited has to be seen.
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            async with connection.transaction():
                await _migrate(connection, database, known)


async def _read_version(connection: psycopg.AsyncConnection, database: Database) -> int:
    """The version found; zero if the schema is not there yet."""
    # Not `to_regclass`: it may remember, from before the wait for the lock, that there was none.
    cursor = await connection.execute(
        "select from pg_catalog.pg_tables where schemaname = %s and tablename = 'schema_version'",
        [database.sql.schema],
    )
    if await cursor.fetchone() is None:
        return 0
    cursor = await connection.execute(
        database.sql.with_schema("select coalesce(max(version), 0) from holdfast.schema_version").encode()
    )
    row = await cursor.fetchone()
    assert row is not None
    found: int = row[0]
    if found > len(database.sql.migrations):
        where = f"schema {database.sql.schema} of {database.label}"
        raise SchemaTooNew(where, found, len(database.sql.migrations))
    return found


async def _migrate(connection: psycopg.AsyncConnection, database: Database, known: int) -> None:
    scripts = database.sql
    # Held to the end of the transaction, so also where a pooler gives the next one to another session.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"holdfast:{scripts.schema}"])
    found = await _read_version(connection, database)
    if found == known:
        return  # somebody else was first
    if found == 0:
        await connection.execute(f'create schema if not exists "{scripts.schema}"'.encode())
        await connection.execute(
            scripts.with_schema(
                "create table holdfast.schema_version"
                " (version integer primary key, applied_at timestamptz not null default now())"
            ).encode()
        )
    for migration in scripts.migrations[found:]:
        await connection.execute(migration.encode())
    # They call each other, in any order.
    await connection.execute("set local check_function_bodies = off")
    for function in scripts.functions:
        await connection.execute(function.encode())
    await connection.execute(
        scripts.with_schema(
            "insert into holdfast.schema_version select generate_series(%s::integer, %s::integer)"
        ).encode(),
        [found + 1, known],
    )


_HEALTH_QUERY = """
select (select coalesce(max(version), 0) from holdfast.schema_version),
    coalesce(sum(pg_table_size(class.oid)), 0)::bigint,
    coalesce(array_agg(class.relname::text) filter (where not index.indisvalid), '{}')
from pg_catalog.pg_class as class
left join pg_catalog.pg_index as index on index.indexrelid = class.oid
where class.relnamespace = %s::text::regnamespace and class.relkind in ('r', 'i')
"""


async def check_health(database: Database) -> StoreHealth:
    """Ask the server's catalogue. Whether its files are sound is the server's business."""
    return await database.retry(lambda: _try_check_health(database))


async def _try_check_health(database: Database) -> StoreHealth:
    scripts = database.sql
    async with await database.connect() as connection:
        cursor = await connection.execute(scripts.with_schema(_HEALTH_QUERY).encode(), [f'"{scripts.schema}"'])
        [(version, size, unusable)] = await cursor.fetchall()
    return StoreHealth(
        version=version,
        known_version=len(scripts.migrations),
        size=size,
        problems=[f"the index {name} cannot be used: reindex it" for name in unusable],
    )
