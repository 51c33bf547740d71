"""Reads that take too long on PostgreSQL: the server ends them before their caller gives up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from tests.postgres_proxy import TransactionPooler
from tests.postgres_server import LocalServer
from tests.stores.postgres_support import LONG, open_store, wait_until

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.record import RunFilter
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.tables import Cursor, TablesUnavailable
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import make_run

READS: dict[str, Callable[[PostgresStore], Awaitable[Any]]] = {
    "list": PostgresStore.list_page,
    "fleet": PostgresStore.read_fleet,
    "limits": PostgresStore.list_limits,
}


@contextlib.contextmanager
def locked(url: str) -> Iterator[psycopg.Connection]:
    """Hold a lock that every read of the runs waits for. Returns another connection, which looks at the sessions."""
    with psycopg.connect(url) as locker, psycopg.connect(url, autocommit=True) as observer:
        locker.execute("lock table holdfast.run in access exclusive mode")
        yield observer


def count_waiting(observer: psycopg.Connection) -> int:
    """The sessions whose statements wait for the lock."""
    waiting = "select count(*) from pg_stat_activity where state = 'active' and wait_event_type = 'Lock'"
    [(count,)] = observer.execute(waiting.encode()).fetchall()
    return int(count)


async def has_waiting(observer: psycopg.Connection, count: int) -> bool:
    return count_waiting(observer) == count


@pytest.mark.parametrize("read", READS)
async def test_the_server_ends_a_read_that_takes_too_long(url: str, read: str) -> None:
    async with open_store(url, timeout=timedelta(seconds=10)) as store:
        with locked(url) as observer:
            with pytest.raises(StoreUnavailable, match="took too long"):
                await asyncio.wait_for(READS[read](store), LONG)
            assert count_waiting(observer) == 0, "no session works for a caller that has given up"
        await READS[read](store)


@pytest.mark.skipif(not psycopg.capabilities.has_cancel_safe(), reason="the client library is older than libpq 17")
@pytest.mark.parametrize("read", READS)
async def test_a_cancelled_caller_ends_its_read_on_the_server(url: str, read: str) -> None:
    async with open_store(url, timeout=timedelta(minutes=10)) as store:
        with locked(url) as observer:
            reading = asyncio.ensure_future(READS[read](store))
            await wait_until(partial(has_waiting, observer, 1))
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await wait_until(partial(has_waiting, observer, 0))
        await READS[read](store)


async def count_runs(cursor: Cursor) -> int:
    [(count,)] = await cursor.execute("SELECT count(*) FROM run")
    return int(count)


async def test_reads_of_a_batterys_tables_end_too(url: str) -> None:
    async with open_store(url):
        tables = PostgresTables(url, timeout=timedelta(seconds=10))
        with locked(url) as observer:
            with pytest.raises(TablesUnavailable):
                await asyncio.wait_for(tables.read(count_runs), LONG)
            assert count_waiting(observer) == 0
        assert await tables.read(count_runs) == 0
        await tables.close()


@pytest.fixture
async def pooled(server: LocalServer, url: str) -> AsyncIterator[str]:
    database = urlsplit(url).path.removeprefix("/")
    pooler = TransactionPooler(server.socket, database)
    async with pooler.running():
        yield pooler.url(database)


async def test_behind_a_pooler_the_limit_stays_with_the_read(url: str, pooled: str) -> None:
    async with open_store(pooled, listen_url=url, timeout=timedelta(seconds=10)) as store:
        with locked(url) as observer:
            with pytest.raises(StoreUnavailable, match="took too long"):
                await asyncio.wait_for(store.list_page(), LONG)
            assert count_waiting(observer) == 0
        for _ in range(10):
            await store.list_page()
            async with await psycopg.AsyncConnection.connect(pooled, autocommit=True) as connection:
                assert await (await connection.execute("show statement_timeout")).fetchone() == ("0",)


async def test_a_page_with_hundreds_of_labels_is_one_join(url: str) -> None:
    labels = {f"label-{number}": "x" for number in range(300)}
    async with open_store(url, timeout=timedelta(seconds=20)) as store:
        await store.create(make_run("all", labels=labels))
        for number in range(20):
            await store.create(make_run(f"some-{number}", labels=dict(list(labels.items())[:number])))
        page = await store.list_page(RunFilter(labels=labels))
        assert [record.run_id for record in page.records] == ["all"]
        page = await store.list_page(RunFilter(labels=dict(list(labels.items())[:18])))
        assert [record.run_id for record in page.records] == ["some-19", "some-18", "all"]
        assert (await store.list_page(RunFilter(labels=labels | {"other": "x"}))).records == ()
