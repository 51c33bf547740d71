"""An address that leads to a standby for a while, as in the middle of a failover."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest
from tests.postgres_proxy import CuttingProxy
from tests.postgres_server import LocalServer, fresh_database
from tests.stores.postgres_support import fail_after_timeout, open_store, route_through, wait_until

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import add_worker, create_claimed, load_bodies, make_append


@pytest.fixture(scope="module")
def primary() -> Iterator[LocalServer]:
    server = LocalServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def standby(primary: LocalServer) -> Iterator[LocalServer]:
    server = LocalServer(follows=primary)
    yield server
    server.remove()


@pytest.fixture
def url(primary: LocalServer) -> Iterator[str]:
    """Straight to the primary."""
    with fresh_database(primary) as url:
        yield url


@pytest.fixture
async def address(primary: LocalServer) -> AsyncIterator[CuttingProxy]:
    """Leads to the primary at first."""
    proxy = CuttingProxy(primary.socket)
    async with proxy.running():
        yield proxy


@pytest.fixture
async def store(address: CuttingProxy, url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(url), open_store(route_through(address, url), timeout=timedelta(seconds=1)) as store:
        yield store


def cut(url: str) -> None:
    """Every connection that a store has to the primary."""
    asked(url, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'")


def asked(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


async def caught_up(standby: LocalServer, url: str) -> None:
    """Returns once the standby knows of every run."""
    with psycopg.connect(url) as connection:
        [(now,)] = connection.execute("select pg_current_wal_flush_lsn()::text").fetchall()

    async def is_there() -> bool:
        return asked(standby.url(), f"select pg_last_wal_replay_lsn() >= '{now}'") == [(True,)]

    await wait_until(is_there)


async def test_saves_succeed_again_once_it_leads_to_the_primary(
    address: CuttingProxy, primary: LocalServer, standby: LocalServer, store: PostgresStore, url: str
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await caught_up(standby, url)
    address.lead_to(standby.socket)
    cut(url)
    async with fail_after_timeout():
        with pytest.raises(StoreUnavailable, match="standby"):
            await store.append(claim, make_append(1, b"one"))
        address.lead_to(primary.socket)
        await store.append(claim, make_append(1, b"one"))
        await add_worker(store)
    assert await load_bodies(store) == [b"begin", b"one"]


async def test_what_is_read_is_not_what_the_standby_has_indefinitely(
    address: CuttingProxy, primary: LocalServer, standby: LocalServer, store: PostgresStore, url: str
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await caught_up(standby, url)
    asked(standby.url(), "select pg_wal_replay_pause()")
    try:
        address.lead_to(standby.socket)
        cut(url)
        assert await load_bodies(store) == [b"begin"]
        address.lead_to(primary.socket)
        await store.append(claim, make_append(1, b"one"))
        assert await load_bodies(store) == [b"begin", b"one"]
    finally:
        asked(standby.url(), "select pg_wal_replay_resume()")


async def test_who_may_not_listen_there_tries_ever_more_seldom(
    address: CuttingProxy, standby: LocalServer, url: str
) -> None:
    async with open_store(url):
        pass
    await caught_up(standby, url)
    address.lead_to(standby.socket)
    async with open_store(url, listen_url=route_through(address, url)):

        async def tried_often() -> bool:
            return len(address.made) >= 6

        await wait_until(tried_often)
    # Pauses of 50, 100, 200, 400 and 800 ms.
    assert address.made[5] - address.made[0] > 1.5
