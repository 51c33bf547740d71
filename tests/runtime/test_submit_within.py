"""submit(connection=...): the run exists if and only if the transaction of the user commits."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from tests.postgres_server import fresh_database

from holdfast import Agent, App, CheckpointSettings, Reply
from holdfast.checkpoint import codec
from holdfast.checkpoint.errors import RunConflict, StoreError
from holdfast.core.errors import DefinitionError


async def answer(messages: Any, tools: Any) -> Reply:
    return Reply(text=f"{len(messages)} messages")


AGENT = Agent(name="clerk \\ 1", model=answer)

#: A connection in a transaction, which the test commits or rolls back.
Begin = Callable[[str], AbstractAsyncContextManager[tuple[Any, Callable[[], Awaitable[None]]]]]


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[tuple[Any, Callable[[], Awaitable[None]]]]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection, connection.commit
        await connection.rollback()


@asynccontextmanager
async def _sync_psycopg(url: str) -> AsyncIterator[tuple[Any, Callable[[], Awaitable[None]]]]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:

        async def commit() -> None:
            connection.commit()

        yield connection, commit
        connection.rollback()


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[tuple[Any, Callable[[], Awaitable[None]]]]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    committed = False

    async def commit() -> None:
        nonlocal committed
        committed = True
        await transaction.commit()

    yield connection, commit
    if not committed:
        await transaction.rollback()
    await connection.close()


@asynccontextmanager
async def _async_sqlalchemy(url: str) -> AsyncIterator[tuple[Any, Callable[[], Awaitable[None]]]]:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    async with AsyncSession(engine) as session:
        yield session, session.commit
        await session.rollback()
    await engine.dispose()


@asynccontextmanager
async def _sqlalchemy(url: str) -> AsyncIterator[tuple[Any, Callable[[], Awaitable[None]]]]:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:

        async def commit() -> None:
            connection.commit()

        yield connection, commit
        connection.rollback()
    engine.dispose()


DRIVERS: dict[str, Begin] = {
    "psycopg": _psycopg,
    "sync psycopg": _sync_psycopg,
    "asyncpg": _asyncpg,
    "async SQLAlchemy": _async_sqlalchemy,
    "SQLAlchemy": _sqlalchemy,
}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    async with App([AGENT], database) as app:
        yield app


@pytest.mark.parametrize("driver", DRIVERS)
async def test_the_run_exists_if_the_transaction_commits(app: App, database: str, driver: str) -> None:
    run_id = f"{driver.replace(' ', '-')}-committed"
    prompt = "a long \\ prompt with 'quotes', \u00fcml\u00e4uts and \N{WHITE SMILING FACE}" * 400
    async with DRIVERS[driver](database) as (connection, commit):
        given = await app.submit(AGENT, prompt, run_id=run_id, labels={"a\\b": "c"}, connection=connection)
        assert given == run_id
        assert await app.submit(AGENT, prompt, run_id=run_id, connection=connection) == run_id
        with pytest.raises(RunConflict):
            await app.submit(AGENT, "another", run_id=run_id, connection=connection)
        assert run_id not in [run.run_id for run in (await app.list(limit=1000)).runs]
        await commit()
    assert (await app.result(run_id)).output == "1 messages"
    assert run_id in [run.run_id for run in (await app.list(labels={"a\\b": "c"})).runs]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_it_does_not_if_the_transaction_is_rolled_back(app: App, database: str, driver: str) -> None:
    run_id = f"{driver.replace(' ', '-')}-rolled-back"
    async with DRIVERS[driver](database) as (connection, _):
        await app.submit(AGENT, "one", run_id=run_id, connection=connection)
    # The id is free: another prompt is no conflict.
    assert (await app.run(AGENT, "two", run_id=run_id)).output == "1 messages"


async def test_other_runs_continue_while_a_transaction_has_the_id_that_another_caller_submits(
    app: App, database: str
) -> None:
    async with _psycopg(database) as (connection, commit), asyncio.timeout(60):
        await app.submit(AGENT, "one", run_id="twice", connection=connection)
        repeated = asyncio.create_task(app.submit(AGENT, "one", run_id="twice"))
        assert (await app.run(AGENT, "two")).output == "1 messages"
        assert not repeated.done()
        await commit()
        assert await repeated == "twice"
    assert (await app.result("twice")).output == "1 messages"


async def test_a_large_transaction_does_not_use_up_the_locks_of_the_server(app: App, database: str) -> None:
    async with _psycopg(database) as (connection, _):
        await connection.execute("select holdfast.submit('unknown', 'one') from generate_series(1, 520)")
        held = "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()"
        assert await (await connection.execute(held)).fetchone() == (500,)


async def test_the_prompt_is_redacted_as_in_every_other_write(database: str) -> None:
    def redact(value: Any) -> Any:
        return json.loads(json.dumps(value).replace("s3cret", "***"))

    settings = CheckpointSettings(redact=redact)
    async with App([AGENT], database, worker=False, checkpoint=settings) as app:
        async with _psycopg(database) as (connection, commit):
            await app.submit(AGENT, "the s3cret", run_id="redacted", connection=connection)
            await commit()
        assert (await app.get("redacted")).prompt == "the ***"
        async with _psycopg(database) as (connection, commit):
            assert await app.submit(AGENT, "the s3cret", run_id="redacted", connection=connection) == "redacted"


async def test_what_cannot_be_used_is_refused(app: App, database: str, tmp_path: Path) -> None:
    for connection in (object(), "postgresql://db", psycopg.AsyncCursor):
        with pytest.raises(DefinitionError, match=r"connection is .*: give "):
            await app.submit(AGENT, "one", connection=connection)
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as autocommit:
        with pytest.raises(DefinitionError, match="has no transaction"):
            await app.submit(AGENT, "one", connection=autocommit)
        async with autocommit.transaction():
            await app.submit(AGENT, "one", run_id="in-a-block", connection=autocommit)
    assert (await app.result("in-a-block")).output == "1 messages"
    outside = await asyncpg.connect(database)
    with pytest.raises(DefinitionError, match="has no transaction"):
        await app.submit(AGENT, "one", connection=outside)
    await outside.close()
    with fresh_database() as elsewhere:
        for begin in DRIVERS.values():
            async with begin(elsewhere) as (connection, _):
                with pytest.raises(StoreError, match="no schema 'holdfast' of this version"):
                    await app.submit(AGENT, "one", connection=connection)
    async with App([AGENT], f"sqlite:{tmp_path / 'runs.db'}", worker=False) as on_sqlite:
        with pytest.raises(DefinitionError, match="needs a store on PostgreSQL"):
            await on_sqlite.submit(AGENT, "one", connection=object())


async def test_any_language_submits_with_a_function(app: App, database: str) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        submit = "select holdfast.submit(%s, %s, run_id => %s, inputs => %s, labels => %s, caller_id => %s)"
        values = [AGENT.name, "pay \\ \u20ac 5", "from-sql", '{"n": [1, null]}', '{"tenant": "a\\\\b"}', "ada \\"]
        for _ in range(2):  # idempotent
            cursor = await connection.execute(submit, values)
            assert await cursor.fetchone() == ("from-sql",)
        await connection.commit()
        made = await (await connection.execute("select holdfast.submit(%s, 'hello')", [AGENT.name])).fetchone()
        assert made is not None
        await connection.commit()
        limited = "select holdfast.submit(%s, 'hello', run_id => 'limited', concurrency_key => %s, tenant => %s)"
        await connection.execute(limited, [AGENT.name, "a\\b", "c\\d"])
        await connection.commit()
        with pytest.raises(psycopg.errors.UniqueViolation, match="another agent, prompt or inputs"):
            await connection.execute(submit, [*values[:1], "pay 6", *values[2:]])
        await connection.rollback()
        for bad in ("a/b", "", "x" * 201):
            with pytest.raises(psycopg.errors.RaiseException, match="cannot be a run id"):
                await connection.execute("select holdfast.submit('x', 'y', %s)", [bad])
            await connection.rollback()
        for inputs, labels in (("[]", "{}"), ("{}", '{"a": 1}')):
            with pytest.raises(psycopg.errors.RaiseException, match="inputs has to be an object"):
                await connection.execute("select holdfast.submit('x', 'y', null, %s, %s)", [inputs, labels])
            await connection.rollback()
    assert (await app.result("from-sql")).output == (await app.result(made[0])).output == "1 messages"
    details = await app.get("from-sql")
    assert (details.prompt, details.caller, details.labels) == ("pay \\ \u20ac 5", "ada \\", {"tenant": "a\\b"})
    assert app.store is not None
    limited_run = await app.store.load("limited")
    record = limited_run.record
    assert (record.concurrency_key, record.tenant) == ("a\\b", "c\\d")
    begin = codec.decode(limited_run.entries[0].body, codec.Begin)
    assert (begin.info.concurrency_key, begin.info.tenant) == ("a\\b", "c\\d")
    # The same request from Python attaches.
    assert await app.submit(AGENT, "pay \\ \u20ac 5", inputs={"n": [1, None]}, run_id="from-sql") == "from-sql"
