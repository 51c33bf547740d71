"""Behind a transaction pooler: every transaction may come to another session."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from tests.postgres_proxy import TransactionPooler
from tests.postgres_server import LocalServer, fresh_database
from tests.stores.postgres_support import LONG, fail_after_timeout, open_store, wait_until_listening

from holdfast.checkpoint.workers import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    load_bodies,
    make_append,
    make_run,
)
from holdfast.testing.store_tests.append_tests import AppendTests
from holdfast.testing.store_tests.claim_next_tests import ClaimNextTests
from holdfast.testing.store_tests.claim_tests import FencingTests
from holdfast.testing.store_tests.release_tests import RemoveTests


@pytest.fixture
def direct(url: str) -> str:
    """Straight to the server."""
    return url


@pytest_asyncio.fixture
async def pooler(server: LocalServer, direct: str) -> AsyncIterator[TransactionPooler]:
    pooler = TransactionPooler(server.socket, database_of(direct))
    async with pooler.running():
        yield pooler


def database_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


def store_behind(urls: str) -> PostgresStore:
    """A store that works behind a pooler and listens at the server; both URLs, with a space between."""
    pooled, direct = urls.split(" ")
    return PostgresStore(pooled, listen_url=direct)


class TestBehindATransactionPooler(AppendTests, FencingTests, RemoveTests, ClaimNextTests):
    """The contract holds there too."""

    factory: ClassVar[str] = f"{__name__}:store_behind"

    @pytest.fixture
    def location(self, pooler: TransactionPooler, direct: str) -> str:
        return f"{pooler.url(database_of(direct))} {direct}"


async def test_the_tables_are_created_through_the_pooler(server: LocalServer) -> None:
    """The other tests have tables that were created without it."""
    with fresh_database(server) as url:
        pooler = TransactionPooler(server.socket, database_of(url))
        async with pooler.running(), open_store(pooler.url(database_of(url)), listen_url=url) as store:
            await store.create(make_run("run"))
            assert await load_bodies(store, "run") == [b"begin"]


async def test_one_connection_is_given_to_many_sessions(pooler: TransactionPooler, direct: str) -> None:
    async with open_store(pooler.url(database_of(direct)), listen_url=direct) as store, fail_after_timeout():
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(4)]

        async def write(claim: Claim) -> None:
            for seq in range(1, 10):
                await store.append(claim, make_append(seq, b"%d" % seq))
                await store.load("run-0")

        await asyncio.gather(*map(write, claims))
        for n in range(4):
            assert await load_bodies(store, f"run-{n}") == [b"begin", *(b"%d" % seq for seq in range(1, 10))]
    assert max(len(sessions) for sessions in pooler.used) > 1, "the writer has to be moved between sessions"


async def test_where_no_notification_comes_through_changes_are_found_by_looking(
    pooler: TransactionPooler, direct: str
) -> None:
    async with (
        open_store(direct) as other,
        open_store(pooler.url(database_of(direct)), poll_interval=timedelta(milliseconds=50)) as store,
    ):
        await wait_until_listening(other)
        assert not store.is_listening
        async with fail_after_timeout():
            assert await store.wait_for_change(timedelta(seconds=2 * LONG))
        assert not await store.wait_for_change(timedelta(milliseconds=1)), "it does not look more often than it should"


async def test_a_store_that_listens_at_the_server_hears_of_changes(pooler: TransactionPooler, direct: str) -> None:
    async with (
        open_store(direct) as other,
        open_store(pooler.url(database_of(direct)), listen_url=direct) as store,
        fail_after_timeout(),
    ):
        await wait_until_listening(store)
        sign = asyncio.ensure_future(store.wait_for_change(timedelta(seconds=2 * LONG)))
        await asyncio.sleep(0)
        await other.create(make_run())
        assert await sign
