"""A stock server has `jit = on`: it compiles plans that seem expensive, which takes longer than to run them."""

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres_server import LocalServer, fresh_database, shared_server
from tests.stores.postgres_support import open_store

from holdfast.checkpoint.record import Release, RunFilter, RunStatus
from holdfast.testing.store_suite.store_under_test import add_worker, create_claimed, make_append, make_run

#: The server logs every plan that it executes, and whether it compiled it.
LOG_PLANS = (
    "jit = on",
    "session_preload_libraries = 'auto_explain'",
    "auto_explain.log_min_duration = 0",
    "auto_explain.log_analyze = on",
    "auto_explain.log_nested_statements = on",
)


@pytest.fixture
def server() -> LocalServer:
    server = shared_server()
    if not isinstance(server, LocalServer):
        pytest.skip("the log of a named server cannot be read")
    with psycopg.connect(server.url(), autocommit=True) as connection:
        [(available,)] = connection.execute("select pg_jit_available()").fetchall()
        if not available:
            pytest.skip("the embedded server has no JIT compiler")
    return server


@pytest.fixture
def url(server: LocalServer) -> Iterator[str]:
    with fresh_database(server) as url:
        name = urlsplit(url).path.removeprefix("/")
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute("load 'auto_explain'")
            for setting in LOG_PLANS:
                connection.execute(f'alter database "{name}" set {setting}'.encode())
        yield url


async def test_no_statement_of_a_store_is_compiled(server: LocalServer, url: str) -> None:
    async with open_store(url) as store:
        log = server.folder / "log"
        before = log.stat().st_size
        worker = await add_worker(store)
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"more"))
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        await store.create(make_run("run-2"))
        assert len(await store.claim_next(worker, agents=["agent"], limit=2)) == 2
        await store.load("run-1")
        assert len([record async for record in store.list_runs(RunFilter(interrupted=True))]) == 0
        await store.purge()
    plans = log.read_bytes()[before:].decode()
    assert "write_batch" in plans
    assert plans.count("JIT:") == 0
