"""Creates a run on a connection of the user, in the user's own transaction."""

import asyncio
from typing import Any

import msgspec
import psycopg

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.journal import pack_segment
from holdfast.core.errors import DefinitionError
from holdfast.stores.postgres.database import SqlFiles
from holdfast.stores.postgres.write_requests import Command

_PARAMETERS = ("operation", "layout", "checksum", "body")


async def queue_run(connection: Any, command: Command, sql: SqlFiles) -> bytes | None:
    """Create the run on `connection`. It exists if and only if the transaction of the connection commits.

    Args:
        connection: a connection of psycopg, asyncpg or SQLAlchemy, sync or async. SQLAlchemy's sessions work too.

    Returns the first entry of the run that has this id, if there is one. Then nothing was changed.

    Raises:
        DefinitionError: the connection is of another kind, or commits each statement by itself.
        StoreError: the database lacks the schema of the store.
    """
    _, layout, checksum, body = pack_segment(command.entries)
    values = (msgspec.json.encode(command.encode()).decode(), layout, checksum, body)
    execute = _FUNCTIONS.get(type(connection).__module__.partition(".")[0])
    if execute is None:
        raise DefinitionError(
            f"connection is {connection!r:.80}: give one of psycopg, asyncpg or SQLAlchemy to the store's database"
        )
    found = await execute(connection, sql, values)
    return None if found is None else bytes(found)


def _call(sql: SqlFiles, *placeholders: str) -> str:
    operation, layout, checksum, body = placeholders
    return sql.with_schema(
        f"select holdfast.queue_run("
        f"cast(cast({operation} as text) as jsonb), {layout}, cast({checksum} as bigint), {body})"
    )


async def _execute_psycopg(connection: Any, sql: SqlFiles, values: tuple[Any, ...]) -> Any:
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise DefinitionError(f"connection is {connection!r:.80}: give the connection itself")
    if connection.autocommit and connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
        raise _make_autocommit_error()
    statement = _call(sql, "%s", "%s", "%s", "%s").encode()
    try:
        if isinstance(connection, psycopg.AsyncConnection):
            row = await (await connection.execute(statement, values)).fetchone()
        else:
            row = await asyncio.to_thread(lambda: connection.execute(statement, values).fetchone())
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as exc:
        raise _make_schema_error(sql) from exc
    assert row is not None  # a function call returns one row
    # A row factory of the user may return mappings.
    return next(iter(row.values())) if isinstance(row, dict) else row[0]


async def _execute_asyncpg(connection: Any, sql: SqlFiles, values: tuple[Any, ...]) -> Any:
    if not connection.is_in_transaction():
        raise _make_autocommit_error()
    try:
        return await connection.fetchval(_call(sql, "$1", "$2", "$3", "$4"), *values)
    except Exception as exc:  # asyncpg need not be installed, so its classes cannot be named
        if getattr(exc, "sqlstate", None) in ("42883", "3F000"):
            raise _make_schema_error(sql) from exc
        raise


async def _execute_sqlalchemy(connection: Any, sql: SqlFiles, values: tuple[Any, ...]) -> Any:
    import sqlalchemy
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

    statement = sqlalchemy.text(_call(sql, *(f":{name}" for name in _PARAMETERS)))
    parameters = dict(zip(_PARAMETERS, values, strict=True))
    try:
        if isinstance(connection, AsyncConnection | AsyncSession):
            return (await connection.execute(statement, parameters)).scalar()
        return await asyncio.to_thread(lambda: connection.execute(statement, parameters).scalar())
    except sqlalchemy.exc.DBAPIError as exc:
        if getattr(exc.orig, "sqlstate", None) in ("42883", "3F000"):
            raise _make_schema_error(sql) from exc
        raise


_FUNCTIONS = {"psycopg": _execute_psycopg, "asyncpg": _execute_asyncpg, "sqlalchemy": _execute_sqlalchemy}


def _make_autocommit_error() -> DefinitionError:
    return DefinitionError(
        "connection has no transaction: open one, so that the run exists only if it commits, or leave out `connection`"
    )


def _make_schema_error(sql: SqlFiles) -> StoreError:
    return StoreError(
        f"the database of the connection has no schema {sql.schema!r} of this version: use the store's database"
    )
