"""Creates, migrates and checks the schema, and names bad settings of the server."""

from collections.abc import Sequence
from functools import partial

from psycopg.errors import InsufficientPrivilege

from holdfast.checkpoint.errors import SchemaTooNew, SchemaTooOld, StoreError
from holdfast.checkpoint.store import StoreHealth
from holdfast.db.postgres_connection import PgConnection, Rows
from holdfast.stores.postgres.database import Database, SqlFiles

#: Connections of one process: the writer, readers, the heartbeat and LISTEN.
_CONNECTIONS_PER_PROCESS = 6
#: A shorter timeout ends calls on a busy server.
_MIN_TIMEOUT_MS = 10_000

#: Values are in the units of `pg_settings`: milliseconds for timeouts.
SETTINGS_QUERY = """
select name, setting from pg_catalog.pg_settings where name in (
    'fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'default_transaction_read_only',
    'statement_timeout', 'lock_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout'
)
union all
select 'free_connections', (
    current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
    - (select coalesce(sum(numbackends), 0) from pg_catalog.pg_stat_database)
)::text
"""

_SWITCHES = {
    "fsync": ("off", "a crash of the server's host may damage or lose every run: set it to on"),
    "full_page_writes": (
        "off",
        "a power cut may damage every run: set it to on",
    ),
    "synchronous_commit": (
        "off",
        "a crash of the server loses acknowledged saves: set it to on for this user",
    ),
    "autovacuum": ("off", "space is not given back and plans grow stale: set it to on"),
    "default_transaction_read_only": ("on", "nothing can be saved: set it to off for this user or database"),
}

_TIMEOUTS = {
    "statement_timeout": "it ends saves on a busy server",
    "lock_timeout": "it ends saves on a busy server",
    "idle_session_timeout": "it cuts idle connections, among them the one that listens for changes",
    "idle_in_transaction_session_timeout": "it ends transactions of batteries on a busy host",
}


def describe_bad_settings(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return what to change, given the rows of `SETTINGS_QUERY`."""
    settings = dict(rows)
    found = [f"{name} is {bad}: {advice}" for name, (bad, advice) in _SWITCHES.items() if settings.get(name) == bad]
    for name, reason in _TIMEOUTS.items():
        milliseconds = int(settings.get(name, 0))
        if 0 < milliseconds < _MIN_TIMEOUT_MS:
            found.append(f"{name} is {milliseconds} ms: {reason}: use at least {_MIN_TIMEOUT_MS} ms, or 0")
    free = int(settings["free_connections"])
    if free < _CONNECTIONS_PER_PROCESS:
        found.append(
            f"{max(free, 0)} connections are free and a process uses up to {_CONNECTIONS_PER_PROCESS}:"
            " raise max_connections, or use a pooler"
        )
    return found


_CREATE_VERSION_TABLE = (
    "create table holdfast.schema_version (version integer primary key, applied_at timestamptz not null default now())"
)

_HEALTH_QUERY = """
select (select coalesce(max(version), 0) from holdfast.schema_version),
    coalesce(sum(pg_table_size(class.oid)), 0)::bigint,
    coalesce(array_agg(class.relname::text) filter (where not index.indisvalid), '{}')
from pg_catalog.pg_class as class
left join pg_catalog.pg_index as index on index.indexrelid = class.oid
where class.relnamespace = $1::text::regnamespace and class.relkind in ('r', 'i')
"""


async def prepare_schema(database: Database) -> None:
    """Bring the schema to the version this code knows. Any number of processes may do this at once.

    A schema of this version is not touched, so its user needs no right to change it.

    Raises:
        SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
        SchemaTooOld: it has to be migrated, and the user may not. Nothing was changed.
        StoreError: the server refused, or was away for too long.
    """
    await database.run(partial(_try_prepare, database))


async def read_schema_version(database: Database) -> StoreHealth:
    """Read the version of the schema. Changes nothing.

    Raises:
        SchemaTooNew: a newer holdfast wrote it.
        StoreError: the server refused, or was away for too long.
    """
    return await database.run(partial(_try_read_version, database))


async def check_health(database: Database) -> StoreHealth:
    """Read the server's catalogue. The server itself guards its files."""
    return await database.run(partial(_try_check_health, database))


class _Session:
    """One attempt: a connection with its deadline."""

    def __init__(self, connection: PgConnection, sql: SqlFiles, deadline: float) -> None:
        self._connection, self._sql, self._deadline = connection, sql, deadline

    async def execute(self, statement: str, *params: object) -> Rows:
        return await self._connection.execute(self._sql.with_schema(statement), params, deadline=self._deadline)


async def _try_prepare(database: Database, deadline: float) -> None:
    known = len(database.sql.migrations)
    connection = await database.connect(deadline=deadline)
    try:
        if connection.get_parameter("server_encoding") != "UTF8":
            raise StoreError(f"{database.label} does not store UTF-8: create it with encoding 'UTF8'")
        session = _Session(connection, database.sql, deadline)
        found = await _read_version(session, database)
        if found != known:
            # The default may be stricter, but the migration has to see what others commit while it waits for the lock.
            await session.execute("begin isolation level read committed")
            try:
                await _migrate(session, database, known)
            except InsufficientPrivilege as exc:
                raise SchemaTooOld(_describe(database), found, known) from exc
            await session.execute("commit")
    finally:
        connection.close()


async def _try_read_version(database: Database, deadline: float) -> StoreHealth:
    connection = await database.connect(deadline=deadline)
    try:
        found = await _read_version(_Session(connection, database.sql, deadline), database)
    finally:
        connection.close()
    return StoreHealth(version=found, known_version=len(database.sql.migrations))


def _describe(database: Database) -> str:
    return f"schema {database.sql.schema} of {database.label}"


async def _read_version(session: _Session, database: Database) -> int:
    """Return the version of the schema; zero if there is none."""
    # Not `to_regclass`: it may have cached, before the wait for the lock, that there is no such table.
    if not await session.execute(
        "select 1 from pg_catalog.pg_tables where schemaname = $1 and tablename = 'schema_version'",
        database.sql.schema,
    ):
        return 0
    [(found,)] = await session.execute("select coalesce(max(version), 0) from holdfast.schema_version")
    known = len(database.sql.migrations)
    if found > known:
        raise SchemaTooNew(_describe(database), found, known)
    version: int = found
    return version


async def _migrate(session: _Session, database: Database, known: int) -> None:
    sql = database.sql
    # Held until the transaction ends, so it also works behind a pooler.
    await session.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", f"holdfast:{sql.schema}")
    found = await _read_version(session, database)
    if found == known:
        return  # another process was first
    if found == 0:
        await session.execute(f'create schema if not exists "{sql.schema}"')
        await session.execute(_CREATE_VERSION_TABLE)
    for migration in sql.migrations[found:]:
        await session.execute(migration)
    # The functions call each other, in any order.
    await session.execute("set local check_function_bodies = off")
    for function in sql.functions:
        await session.execute(function)
    await session.execute(
        "insert into holdfast.schema_version select generate_series($1::integer, $2::integer)", found + 1, known
    )


async def _try_check_health(database: Database, deadline: float) -> StoreHealth:
    connection = await database.connect(deadline=deadline)
    try:
        session = _Session(connection, database.sql, deadline)
        [(version, size, unusable)] = await session.execute(_HEALTH_QUERY, f'"{database.sql.schema}"')
        settings = await session.execute(SETTINGS_QUERY)
    finally:
        connection.close()
    return StoreHealth(
        version=version,
        known_version=len(database.sql.migrations),
        size=size,
        problems=[f"the index {name} cannot be used: reindex it" for name in unusable],
        warnings=describe_bad_settings([(str(name), str(value)) for name, value in settings]),
    )
