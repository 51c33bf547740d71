"""The schema a store keeps its tables in: created, migrated, and refused when a newer holdfast wrote it."""

import psycopg

from holdfast.checkpoint.errors import SchemaTooNew, StoreError
from holdfast.checkpoint.stores.postgres.database import Database


async def prepare(database: Database) -> None:
    """Bring the schema to the version this code knows. Any number of processes may do this at once.

    A schema that has this version already is not touched, so that its user needs no right to change it.

    Raises:
        SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
        StoreError: the server refused, or was away for too long.
    """
    await database.persist(lambda: _prepare_once(database))


async def _prepare_once(database: Database) -> None:
    known = len(database.scripts.migrations)
    connection = await database.connect()
    async with connection:
        if connection.info.parameter_status("server_encoding") != "UTF8":
            raise StoreError(f"{database.where} does not store UTF-8: create it with encoding 'UTF8'")
        if await _version(connection, database) != known:
            # Whatever the database's default is: what others did while this one waited has to be seen.
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            async with connection.transaction():
                await _migrate(connection, database, known)


async def _version(connection: psycopg.AsyncConnection, database: Database) -> int:
    """The version found; zero if the schema is not there yet."""
    # Not `to_regclass`: it may remember, from before the wait for the lock, that there was none.
    cursor = await connection.execute(
        "select from pg_catalog.pg_tables where schemaname = %s and tablename = 'schema_version'",
        [database.scripts.schema],
    )
    if await cursor.fetchone() is None:
        return 0
    cursor = await connection.execute(
        database.scripts.inline("select coalesce(max(version), 0) from holdfast.schema_version").encode()
    )
    row = await cursor.fetchone()
    assert row is not None
    found: int = row[0]
    if found > len(database.scripts.migrations):
        where = f"schema {database.scripts.schema} of {database.where}"
        raise SchemaTooNew(where, found, len(database.scripts.migrations))
    return found


async def _migrate(connection: psycopg.AsyncConnection, database: Database, known: int) -> None:
    scripts = database.scripts
    # Held to the end of the transaction, so also where a pooler gives the next one to another session.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"holdfast:{scripts.schema}"])
    found = await _version(connection, database)
    if found == known:
        return  # somebody else was first
    if found == 0:
        await connection.execute(f'create schema if not exists "{scripts.schema}"'.encode())
        await connection.execute(
            scripts.inline(
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
        scripts.inline("insert into holdfast.schema_version select generate_series(%s::integer, %s::integer)").encode(),
        [found + 1, known],
    )
