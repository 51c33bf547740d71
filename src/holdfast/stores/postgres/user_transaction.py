"""Transactions that the store shares with the user: creates a run in one, and records the result of a function."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.checkpoint.errors import StoreError, StoreUnavailable
from holdfast.checkpoint.journal import Append, pack_segment
from holdfast.checkpoint.workers import Claim
from holdfast.concurrency import run_in_background, shielded
from holdfast.core.agents.tool_threads import call_in_thread
from holdfast.core.errors import DefinitionError
from holdfast.db.postgres_connection import DeadlinePassed, is_connection_lost
from holdfast.ids import make_uuid
from holdfast.stores.postgres.database import Database, ReaderPool, SqlFiles
from holdfast.stores.postgres.write_requests import (
    AppendRequest,
    Command,
    IdLocked,
    Response,
    measure_entries,
    raise_refusal,
)

#: How often a run is created again whose id is locked.
_LOCK_POLL_S = 0.1

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


async def retry_while_locked(
    execute: Callable[[Command], Awaitable[Response]], make_command: Callable[[], Command], timeout_s: float
) -> Response:
    """Create a run. While a transaction of a user that has created its id is open, repeat that, alone.

    Raises:
        IdLocked: it is still open after `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await execute(make_command())
        except IdLocked:
            if loop.time() > deadline:
                raise
        await asyncio.sleep(_LOCK_POLL_S)


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


#: Functions of the user that one store calls at once: each has a connection.
MAX_TRANSACTIONS = 8

#: One append, among the operations of a batch: `write_batch.sql` says what the arguments are.
_WRITE = """
select holdfast.write_batch(
    %s::uuid, %s::bigint, %s::boolean,
    '{}'::text[], '{}'::bigint[], '{}'::bigint[], '{}'::bigint[], '{}'::bigint[], '{}'::bytea[],
    '{}'::boolean[], '{}'::boolean[], null::bigint[],
    %s::jsonb,
    %s::bigint[], %s::bigint[], %s::text[], %s::bigint[], %s::bytea[]
)
"""

#: Errors at the commit that the writes of the user cause: a deferred constraint, a conflict, a trigger.
_ERRORS_OF_USER = ("23", "40", "P0")


class _AsyncSession:
    """A transaction on a connection for an async function."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self.connection = connection
        # In the block the methods `commit` and `rollback` of the connection are refused.
        self._block = connection.transaction()

    async def begin(self) -> None:
        await self._block.__aenter__()

    async def call(self, function: Callable[[Any], Any]) -> Any:
        return await function(self.connection)

    async def execute(self, statement: str, params: Sequence[Any]) -> Any:
        cursor = psycopg.AsyncCursor(self.connection, row_factory=tuple_row)  # the user may have set a row factory
        [row] = await (await cursor.execute(statement.encode(), params)).fetchall()
        return row[0]

    async def commit(self) -> None:
        await self._block.__aexit__(None, None, None)

    async def close(self) -> None:
        await self.connection.close()


class _ThreadSession:
    """A transaction on a connection for a sync function. All of it happens in threads."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection
        self._block = connection.transaction()
        #: Calls the function.
        self._thread: asyncio.Task[Any] | None = None

    async def begin(self) -> None:
        await asyncio.to_thread(self._block.__enter__)

    async def call(self, function: Callable[[Any], Any]) -> Any:
        self._thread = run_in_background(call_in_thread(function, {"connection": self.connection}))
        returned = await asyncio.shield(self._thread)
        if inspect.iscoroutine(returned):
            returned.close()
            raise DefinitionError("the function of the transaction is not async, and returned a coroutine")
        return returned

    async def execute(self, statement: str, params: Sequence[Any]) -> Any:
        cursor = psycopg.Cursor(self.connection, row_factory=tuple_row)
        await asyncio.to_thread(cursor.execute, statement.encode(), params)
        [row] = cursor.fetchall()
        return row[0]

    async def commit(self) -> None:
        await asyncio.to_thread(self._block.__exit__, None, None, None)

    async def close(self) -> None:
        if self._thread is not None and not self._thread.done():
            self._thread.add_done_callback(self._finish)  # a thread cannot be cancelled, and still uses it
        else:
            self._finish()

    def _finish(self, thread: "asyncio.Task[Any] | None" = None) -> None:
        if thread is not None and not thread.cancelled():
            thread.exception()  # mark as retrieved
        self.connection.close()


class UserTransactions:
    """Calls functions of the user on connections of their own, with an append at the end of their transactions.

    The append has a batch number, as those of the writer: after a lost connection the server says whether it was
    committed.
    """

    def __init__(self, database: Database, readers: ReaderPool, *, durable: bool) -> None:
        self._database, self._readers, self._durable = database, readers, durable
        self._write_sql = database.sql.with_schema(_WRITE)
        self._resolve_sql = database.sql.with_schema("select holdfast.resolve_batch($1::uuid, $2::bigint)")
        self._slots = asyncio.Semaphore(MAX_TRANSACTIONS)
        #: Ids of writers that are free, each with its last batch number. An id has one row at the server.
        self._writers: list[tuple[UUID, int]] = []

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        """See `RunStore.transact`. An async function gets an `AsyncConnection`, a sync one a `Connection`."""
        async with self._slots:
            session = await self._database.run(partial(self._open, inspect.iscoroutinefunction(function)))
            try:
                value = await self._call(session, function)
                write = make_write(value)
                # From here on a cancel of the caller changes nothing.
                await shielded(run_in_background(self._commit(session, claim, write)), suppress_cancel=True)
                return value
            finally:
                await shielded(session.close())  # rolls back what is not committed

    async def _open(self, is_async: bool, deadline: float) -> _AsyncSession | _ThreadSession:
        """Connect and begin a transaction. Raises `psycopg.Error`."""
        session: _AsyncSession | _ThreadSession | None = None
        try:
            async with asyncio.timeout_at(deadline):
                if is_async:
                    session = _AsyncSession(await self._database.connect_user())
                else:
                    session = _ThreadSession(await asyncio.to_thread(self._database.connect_user_in_thread))
                await session.begin()
                return session
        except BaseException as exc:
            if session is not None:
                await session.close()
            if isinstance(exc, TimeoutError):
                raise DeadlinePassed() from None
            raise

    async def _call(self, session: _AsyncSession | _ThreadSession, function: Callable[[Any], Any]) -> Any:
        """Return what the function returns. Its transaction is open after that."""
        try:
            value = await session.call(function)
        except psycopg.Error as exc:
            if session.connection.closed or is_connection_lost(exc):
                raise StoreUnavailable(f"{self._database.label} was lost during a transaction: {exc}") from exc
            raise
        status = session.connection.info.transaction_status
        if status is TransactionStatus.INERROR:
            raise psycopg.errors.InFailedSqlTransaction("a statement has failed: the transaction cannot be committed")
        if status is not TransactionStatus.INTRANS:
            raise DefinitionError("the function has ended its transaction: leave the commit to holdfast")
        return value

    async def _commit(self, session: _AsyncSession | _ThreadSession, claim: Claim, write: Append) -> None:
        """Append and commit. An unknown outcome is looked up."""
        writer_id, number = self._writers.pop() if self._writers else (make_uuid(), 0)
        number += 2
        try:
            async with asyncio.timeout(self._database.timeout_s):
                request = AppendRequest(claim.run_id, claim.token, write, measure_entries(claim.run_id, write.entries))
                answers = await session.execute(self._write_sql, [writer_id, number, self._durable, *_encode(request)])
                if answers:
                    raise_refusal(request, answers["1"])
                await session.commit()
        except psycopg.Error as exc:
            if exc.sqlstate is not None and exc.sqlstate.startswith(_ERRORS_OF_USER):
                raise
            if not is_connection_lost(exc) and not session.connection.closed:
                raise self._database.map_error(exc) from exc
            if not await self._is_committed(session, writer_id, number):
                raise StoreUnavailable(f"{self._database.label} was lost at the commit: {exc}") from exc
        except TimeoutError as exc:
            if not await self._is_committed(session, writer_id, number):
                raise StoreUnavailable(f"{self._database.label} did not answer the commit") from exc
        self._writers.append((writer_id, number))

    async def _is_committed(self, session: _AsyncSession | _ThreadSession, writer_id: UUID, number: int) -> bool:
        """Learn the outcome of a commit that got no answer. If it was not committed, it never will be."""
        await session.close()
        [(answers,)] = await self._readers.execute(self._resolve_sql, (writer_id, number))
        return answers is not None


def _encode(request: AppendRequest) -> list[Any]:
    """Return the arguments of `_WRITE` from the fourth on."""
    operation = msgspec.json.encode([request.encode()]).decode()
    if not request.entries:
        return [operation, [], [], [], [], []]
    seq, layout, checksum, body = pack_segment(request.entries)
    return [operation, [1], [seq], [layout], [checksum], [body]]
