"""Connections that are cut at the worst moment: nothing is lost, nothing is done twice, and no outcome is guessed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import psycopg
import pytest
from tests.postgres_proxy import CuttingProxy, Harm
from tests.stores.postgres_support import fail_after_timeout, open_store, route_through, wait_until

from holdfast.checkpoint.errors import ClaimLost, StoreUnavailable
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    get_run_ids,
    list_run_ids,
    load_bodies,
    load_record,
    make_append,
    make_run,
)

WRITE = b"write_batch"
IMPATIENT = timedelta(seconds=1)


@pytest.fixture
async def store(proxy: CuttingProxy, url: str) -> AsyncIterator[PostgresStore]:
    """Through the proxy."""
    async with open_store(route_through(proxy, url)) as store:
        yield store


@pytest.fixture
async def impatient(proxy: CuttingProxy, url: str) -> AsyncIterator[PostgresStore]:
    """Through the proxy, with a short timeout. The tables exist already: creating them takes longer."""
    async with open_store(url), open_store(route_through(proxy, url), timeout=IMPATIENT) as store:
        yield store


Harmed = Callable[[Awaitable[object]], Awaitable[object]]


@pytest.fixture(params=[Harm.LOSE_THE_ANSWER, Harm.CUT_BEFORE_IT, Harm.CUT_AFTER_IT], ids=lambda harm: harm.name)
def harmed(request: pytest.FixtureRequest, proxy: CuttingProxy) -> Harmed:
    """Make a call during which the connection is cut in one of the possible ways, and see to it that it was."""

    async def call(awaitable: Awaitable[object]) -> object:
        proxy.harm(request.param, WRITE)
        async with fail_after_timeout():
            result = await awaitable
        assert proxy.landed.is_set(), "the cut has to land in this call"
        return result

    return call


class TestAnAnswerThatNeverCame:
    async def test_an_append_is_there_once(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await create_claimed(store, await add_worker(store))
        await harmed(store.append(claim, make_append(1, b"one", b"two")))
        await store.append(claim, make_append(3, b"three"))
        assert await load_bodies(store) == [b"begin", b"one", b"two", b"three"]

    async def test_all_appends_of_a_batch_are_there_once(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(20)]
        stolen = await store.claim("run-7", worker, steal=True)
        appends = [store.append(claim, make_append(1, claim.run_id.encode())) for claim in claims]
        results = await harmed(asyncio.gather(*appends, return_exceptions=True))
        assert isinstance(results, list)
        assert [type(result) for result in results if result is not None] == [ClaimLost]
        assert results[7].current == stolen.token
        for n in range(20):
            expected = [b"begin"] if n == 7 else [b"begin", b"run-%d" % n]
            assert await load_bodies(store, f"run-{n}") == expected

    async def test_a_created_run_is_claimed_by_its_creator(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await harmed(store.create(make_run(), worker_id=await add_worker(store)))
        assert isinstance(claim, Claim)
        assert claim.strikes == 1
        await store.append(claim, make_append(1, b"more"))
        assert await load_bodies(store) == [b"begin", b"more"]

    async def test_a_submitted_run_is_there_once(self, store: PostgresStore, harmed: Harmed) -> None:
        await harmed(store.create(make_run()))
        assert await load_bodies(store) == [b"begin"]
        assert (await load_record(store)).status is RunStatus.QUEUED

    async def test_a_settled_run_is_settled(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await create_claimed(store, await add_worker(store))
        await harmed(store.release(claim, Release(status=RunStatus.PARKED, reason="approval")))
        record = await load_record(store)
        assert (record.status, record.reason) == (RunStatus.PARKED, "approval")
        with pytest.raises(ClaimLost):
            await store.release(claim, Release(status=RunStatus.PARKED, reason="approval"))

    async def test_a_removed_run_is_gone(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await create_claimed(store, await add_worker(store))
        await harmed(store.remove("run-1", claim=claim))
        assert await list_run_ids(store) == []

    async def test_a_claim_is_known_to_its_winner(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await add_worker(store)
        await store.create(make_run())
        claim = await harmed(store.claim("run-1", worker))
        assert isinstance(claim, Claim)
        record = await load_record(store)
        assert (record.token, record.strikes) == (claim.token, 1)
        await store.append(claim, make_append(1, b"more"))

    async def test_every_run_that_was_taken_is_known(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await add_worker(store)
        for n in range(5):
            await store.create(make_run(f"run-{n}"))
        claims = await harmed(store.claim_next(worker, agents=["agent"], limit=3))
        assert isinstance(claims, tuple)
        assert get_run_ids(claims) == ["run-0", "run-1", "run-2"]
        assert [record.strikes async for record in iter_runs(store)] == [1, 1, 1, 0, 0]

    async def test_a_purge_counts_what_it_removed(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await add_worker(store)
        for n in range(3):
            claim = await create_claimed(store, worker, make_run(f"run-{n}"))
            await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(0)))
        assert await harmed(store.purge(limit=2)) == 2
        assert len(await list_run_ids(store)) == 1

    async def test_a_cancel_is_asked(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await add_worker(store)
        await create_claimed(store, worker)
        await harmed(store.request_cancel("run-1"))
        assert (await store.pending(worker)).cancels == ("run-1",)


async def test_a_batch_that_the_server_still_works_on_is_not_written_beside_it(
    store: PostgresStore, proxy: CuttingProxy, url: str
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("select from holdfast.run for update")  # the write has to wait for this
        proxy.harm(Harm.CUT_AFTER_IT, WRITE)
        writing = asyncio.ensure_future(store.append(claim, make_append(1, b"once")))
        async with fail_after_timeout():
            await proxy.landed.wait()
            # The first, which knows nothing of the cut, and the second.
            await wait_until(lambda: _two_writes_wait(url))
        assert not writing.done()
        await other.rollback()
    async with fail_after_timeout():
        await writing
    assert await load_bodies(store) == [b"begin", b"once"]
    await store.append(claim, make_append(2, b"continues"))


async def _two_writes_wait(url: str) -> bool:
    """Whether two sessions are in the middle of a batch and wait for a lock."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "select count(*) from pg_stat_activity"
            " where wait_event_type = 'Lock' and query like '%write_batch%' and datname = current_database()"
        )
        return await cursor.fetchone() == (2,)


class TestAConnectionThatFallsSilent:
    async def test_another_one_is_tried(self, proxy: CuttingProxy, impatient: PostgresStore) -> None:
        claim = await create_claimed(impatient, await add_worker(impatient))
        proxy.harm(Harm.FALL_SILENT, WRITE)
        async with fail_after_timeout():
            await impatient.append(claim, make_append(1, b"one"))
        assert proxy.landed.is_set()
        assert await load_bodies(impatient) == [b"begin", b"one"]

    async def test_the_server_is_finally_given_up(self, proxy: CuttingProxy, impatient: PostgresStore) -> None:
        claim = await create_claimed(impatient, await add_worker(impatient))
        proxy.harm(Harm.FALL_SILENT, WRITE, and_refuse=True)
        async with fail_after_timeout():
            with pytest.raises(StoreUnavailable):
                await impatient.append(claim, make_append(1, b"one"))
        assert proxy.landed.is_set()
        proxy.refusing = False
        await impatient.append(claim, make_append(1, b"one"))
        assert await load_bodies(impatient) == [b"begin", b"one"]

    async def test_reading_continues_over_another_one(self, proxy: CuttingProxy, impatient: PostgresStore) -> None:
        await create_claimed(impatient, await add_worker(impatient))
        await impatient.load("run-1")
        proxy.harm(Harm.FALL_SILENT, b"load_run")
        async with fail_after_timeout():
            assert await load_bodies(impatient) == [b"begin"]
        assert proxy.landed.is_set()


async def test_a_store_whose_connection_is_lost_while_it_stops_to_listen_closes(proxy: CuttingProxy, url: str) -> None:
    """psycopg then raises the error of the connection in place of the cancel."""
    store = PostgresStore(url, listen_url=route_through(proxy, url))
    proxy.harm(Harm.FALL_SILENT, b"listen ")
    await store.open()
    async with fail_after_timeout():
        await proxy.landed.wait()
        known = len(proxy.made)
        closing = asyncio.create_task(store.close())

        async def is_cancelled_at_the_server() -> bool:
            return len(proxy.made) > known

        await wait_until(is_cancelled_at_the_server)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'holdfast' and datname = current_database()"
            )
        await closing
