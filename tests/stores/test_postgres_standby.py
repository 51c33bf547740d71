"""An address that leads to a standby for a while, as in the middle of a failover."""

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest
from tests.postgres_proxy import CuttingProxy
from tests.postgres_server import EmbeddedServer, fresh_database
from tests.stores.postgres_cases import bounded, opened, through, until

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.stores.postgres import PostgresStore
from holdfast.testing.store_suite.subject import a_write, begun, bodies_of, enlisted


@pytest.fixture(scope="module")
def primary() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def standby(primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(follows=primary)
    yield server
    server.remove()


@pytest.fixture
def url(primary: EmbeddedServer) -> Iterator[str]:
    """Straight to the primary."""
    with fresh_database(primary) as url:
        yield url


@pytest.fixture
async def address(primary: EmbeddedServer) -> AsyncIterator[CuttingProxy]:
    """Leads to the primary at first."""
    proxy = CuttingProxy(primary.socket)
    async with proxy.running():
        yield proxy


@pytest.fixture
async def store(address: CuttingProxy, url: str) -> AsyncIterator[PostgresStore]:
    async with opened(url), opened(through(address, url), patience=timedelta(seconds=1)) as store:
        yield store


def cut(url: str) -> None:
    """Every connection that a store has to the primary."""
    asked(url, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'")


def asked(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


async def caught_up(standby: EmbeddedServer, url: str) -> None:
    """Returns once the standby knows of every run."""
    with psycopg.connect(url) as connection:
        [(now,)] = connection.execute("select pg_current_wal_flush_lsn()::text").fetchall()

    async def is_there() -> bool:
        return asked(standby.url(), f"select pg_last_wal_replay_lsn() >= '{now}'") == [(True,)]

    await until(is_there)


async def test_saves_succeed_again_once_it_leads_to_the_primary(
    address: CuttingProxy, primary: EmbeddedServer, standby: EmbeddedServer, store: PostgresStore, url: str
) -> None:
    claim = await begun(store, await enlisted(store))
    await caught_up(standby, url)
    address.lead_to(standby.socket)
    cut(url)
    async with bounded():
        with pytest.raises(StoreUnavailable, match="standby"):
            await store.append(claim, a_write(1, b"one"))
        address.lead_to(primary.socket)
        await store.append(claim, a_write(1, b"one"))
        await enlisted(store)
    assert await bodies_of(store) == [b"begin", b"one"]


async def test_what_is_read_is_not_what_the_standby_has_for_ever(
    address: CuttingProxy, primary: EmbeddedServer, standby: EmbeddedServer, store: PostgresStore, url: str
) -> None:
    claim = await begun(store, await enlisted(store))
    await caught_up(standby, url)
    asked(standby.url(), "select pg_wal_replay_pause()")
    try:
        address.lead_to(standby.socket)
        cut(url)
        assert await bodies_of(store) == [b"begin"]
        address.lead_to(primary.socket)
        await store.append(claim, a_write(1, b"one"))
        assert await bodies_of(store) == [b"begin", b"one"]
    finally:
        asked(standby.url(), "select pg_wal_replay_resume()")


async def test_who_may_not_listen_there_tries_ever_more_seldom(
    address: CuttingProxy, standby: EmbeddedServer, url: str
) -> None:
    async with opened(url):
        pass
    await caught_up(standby, url)
    address.lead_to(standby.socket)
    async with opened(url, listen_url=through(address, url)):

        async def tried_often() -> bool:
            return len(address.made) >= 6

        await until(tried_often)
    # Pauses of 50, 100, 200, 400 and 800 ms.
    assert address.made[5] - address.made[0] > 1.5
