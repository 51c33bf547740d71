"""A stock server has `jit = on`: it compiles plans that seem expensive, which takes longer than to run them."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres_pool import open_new_postgres
from tests.postgres_server import LocalServer, shared_server
from tests.stores.postgres_support import open_store

from holdfast.checkpoint.record import Release, RunFilter, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import add_worker, create_claimed, make_append, make_run

#: The server logs every plan that it executes, and whether it compiled it.
LOG_PLANS = (
    "jit = on",
    "session_preload_libraries = 'auto_explain'",
    "auto_explain.log_min_duration = 0",
    "auto_explain.log_analyze = on",
    "auto_explain.log_nested_statements = on",
)

#: A disabled scan makes a plan seem expensive enough to compile.
MAY_BE_COMPILED = """
select proname from pg_proc
where pronamespace = 'holdfast'::regnamespace and proconfig::text like '%enable_%' and not 'jit=off' = any (proconfig)
"""


@pytest.fixture
def url() -> Iterator[str]:
    with open_new_postgres() as url:
        yield url


def log_plans(server: LocalServer, url: str) -> None:
    name = urlsplit(url).path.removeprefix("/")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("load 'auto_explain'")
        for setting in LOG_PLANS:
            connection.execute(f'alter database "{name}" set {setting}'.encode())


def ask(url: str, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(question.encode()).fetchall()


async def use_every_statement(store: PostgresStore) -> None:
    worker = await add_worker(store)
    claim = await create_claimed(store, worker)
    await store.append(claim, make_append(1, b"more"))
    await store.release(claim, Release(status=RunStatus.INTERRUPTED))
    await store.create(make_run("run-2"))
    assert len(await store.claim_next(worker, agents=["agent"], limit=2)) == 2
    await store.load("run-1")
    assert len([record async for record in iter_runs(store, RunFilter(interrupted=True))]) == 0
    await store.purge()


async def test_no_statement_of_a_store_is_compiled(url: str) -> None:
    """On a server without a JIT compiler, as the embedded one, only the settings of the functions are looked at."""
    assert ask(url, MAY_BE_COMPILED) == []
    server = shared_server()
    if not isinstance(server, LocalServer) or ask(url, "select pg_jit_available()") == [(False,)]:
        return
    log_plans(server, url)
    log = server.folder / "log"
    before = log.stat().st_size
    async with open_store(url) as store:
        await use_every_statement(store)
    plans = log.read_bytes()[before:].decode()
    assert "write_batch" in plans
    assert plans.count("JIT:") == 0
