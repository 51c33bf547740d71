"""Behind a transaction pooler: every transaction may come to another session."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from tests.postgres_proxy import TransactionPooler
from tests.postgres_server import EmbeddedServer, fresh_database
from tests.stores.postgres_cases import LONG, bounded, opened

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.stores.postgres import PostgresStore
from holdfast.testing.store_suite.claims import FenceClauses
from holdfast.testing.store_suite.endings import RemoveClauses
from holdfast.testing.store_suite.finding import ClaimNextClauses
from holdfast.testing.store_suite.journal import AppendClauses
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer()
    yield server
    server.remove()


@pytest.fixture
def direct(server: EmbeddedServer) -> Iterator[str]:
    """Straight to the server."""
    with fresh_database(server) as url:
        yield url


@pytest_asyncio.fixture
async def pooler(server: EmbeddedServer, direct: str) -> AsyncIterator[TransactionPooler]:
    pooler = TransactionPooler(server.socket, database_of(direct))
    async with pooler.running():
        yield pooler


def database_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def store_behind(urls: str) -> PostgresStore:
    """A store that works behind a pooler and listens at the server; both URLs, with a space between."""
    pooled, direct = urls.split(" ")
    return PostgresStore(pooled, listen_url=direct)


class TestBehindATransactionPooler(AppendClauses, FenceClauses, RemoveClauses, ClaimNextClauses):
    """The contract holds there too."""

    factory: ClassVar[str] = f"{__name__}:store_behind"

    @pytest.fixture
    def location(self, pooler: TransactionPooler, direct: str) -> str:
        return f"{pooler.url(database_of(direct))} {direct}"


async def test_one_connection_is_given_to_many_sessions(pooler: TransactionPooler, direct: str) -> None:
    async with opened(pooler.url(database_of(direct)), listen_url=direct) as store, bounded():
        worker = await enlisted(store)
        claims = [await begun(store, worker, a_run(f"run-{n}")) for n in range(4)]

        async def write(claim: Claim) -> None:
            for seq in range(1, 10):
                await store.append(claim, a_write(seq, b"%d" % seq))
                await store.load("run-0")

        await asyncio.gather(*map(write, claims))
        for n in range(4):
            assert await bodies_of(store, f"run-{n}") == [b"begin", *(b"%d" % seq for seq in range(1, 10))]
    assert max(len(sessions) for sessions in pooler.used) > 1, "the writer has to be moved between sessions"


async def test_where_no_notification_comes_through_changes_are_found_by_looking(
    pooler: TransactionPooler, direct: str
) -> None:
    async with (
        opened(direct) as other,
        opened(pooler.url(database_of(direct)), poll=timedelta(milliseconds=50)) as store,
    ):
        assert other.hears_of_changes
        assert not store.hears_of_changes
        async with bounded():
            assert await store.changed(timedelta(seconds=2 * LONG))
        assert not await store.changed(timedelta(milliseconds=1)), "it does not look more often than it should"


async def test_a_store_that_listens_at_the_server_hears_of_changes(pooler: TransactionPooler, direct: str) -> None:
    async with opened(direct) as other, opened(pooler.url(database_of(direct)), listen_url=direct) as store, bounded():
        assert store.hears_of_changes
        sign = asyncio.ensure_future(store.changed(timedelta(seconds=2 * LONG)))
        await asyncio.sleep(0)
        await other.create(a_run())
        assert await sign
