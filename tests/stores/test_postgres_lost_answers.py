"""Connections that are cut at the worst moment: nothing is lost, nothing is done twice, and nobody guesses."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import psycopg
import pytest
from tests.postgres_proxy import CuttingProxy, Harm
from tests.stores.postgres_cases import bounded, opened, through, until

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, StoreUnavailable
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.postgres import PostgresStore
from holdfast.testing.store_suite.subject import (
    a_run,
    a_write,
    begun,
    bodies_of,
    enlisted,
    ids,
    listed,
    record_of,
)

WRITE = b"write_batch"
IMPATIENT = timedelta(seconds=1)


@pytest.fixture
async def store(proxy: CuttingProxy, url: str) -> AsyncIterator[PostgresStore]:
    """Through the proxy."""
    async with opened(through(proxy, url)) as store:
        yield store


@pytest.fixture
async def impatient(proxy: CuttingProxy, url: str) -> AsyncIterator[PostgresStore]:
    """Through the proxy, with little patience. What takes longer than that, its tables, is there before."""
    async with opened(url), opened(through(proxy, url), patience=IMPATIENT) as store:
        yield store


Harmed = Callable[[Awaitable[object]], Awaitable[object]]


@pytest.fixture(params=[Harm.LOSE_THE_ANSWER, Harm.CUT_BEFORE_IT, Harm.CUT_AFTER_IT], ids=lambda harm: harm.name)
def harmed(request: pytest.FixtureRequest, proxy: CuttingProxy) -> Harmed:
    """Make a call during which the connection is cut in one of the possible ways, and see to it that it was."""

    async def call(awaitable: Awaitable[object]) -> object:
        proxy.harm(request.param, WRITE)
        async with bounded():
            result = await awaitable
        assert proxy.landed.is_set(), "the cut has to land in this call"
        return result

    return call


class TestAnAnswerThatNeverCame:
    async def test_an_append_is_there_once(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await begun(store, await enlisted(store))
        await harmed(store.append(claim, a_write(1, b"one", b"two")))
        await store.append(claim, a_write(3, b"three"))
        assert await bodies_of(store) == [b"begin", b"one", b"two", b"three"]

    async def test_all_appends_of_a_batch_are_there_once(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await enlisted(store)
        claims = [await begun(store, worker, a_run(f"run-{n}")) for n in range(20)]
        stolen = await store.claim("run-7", worker, steal=True)
        appends = [store.append(claim, a_write(1, claim.run_id.encode())) for claim in claims]
        results = await harmed(asyncio.gather(*appends, return_exceptions=True))
        assert isinstance(results, list)
        assert [type(result) for result in results if result is not None] == [ClaimLost]
        assert results[7].current == stolen.token
        for n in range(20):
            expected = [b"begin"] if n == 7 else [b"begin", b"run-%d" % n]
            assert await bodies_of(store, f"run-{n}") == expected

    async def test_a_created_run_is_claimed_by_its_creator(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await harmed(store.create(a_run(), worker_id=await enlisted(store)))
        assert isinstance(claim, Claim)
        assert claim.strikes == 1
        await store.append(claim, a_write(1, b"more"))
        assert await bodies_of(store) == [b"begin", b"more"]

    async def test_a_submitted_run_is_there_once(self, store: PostgresStore, harmed: Harmed) -> None:
        await harmed(store.create(a_run()))
        assert await bodies_of(store) == [b"begin"]
        assert (await record_of(store)).status is Status.QUEUED

    async def test_a_settled_run_is_settled(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await begun(store, await enlisted(store))
        await harmed(store.settle(claim, Ending(status=Status.PARKED, reason="approval")))
        record = await record_of(store)
        assert (record.status, record.reason) == (Status.PARKED, "approval")
        with pytest.raises(ClaimLost):
            await store.settle(claim, Ending(status=Status.PARKED, reason="approval"))

    async def test_a_removed_run_is_gone(self, store: PostgresStore, harmed: Harmed) -> None:
        claim = await begun(store, await enlisted(store))
        await harmed(store.remove("run-1", claim=claim))
        assert await listed(store) == []

    async def test_a_claim_is_known_to_its_winner(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await enlisted(store)
        await store.create(a_run())
        claim = await harmed(store.claim("run-1", worker))
        assert isinstance(claim, Claim)
        record = await record_of(store)
        assert (record.token, record.strikes) == (claim.token, 1)
        await store.append(claim, a_write(1, b"more"))

    async def test_every_run_that_was_taken_is_known(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await enlisted(store)
        for n in range(5):
            await store.create(a_run(f"run-{n}"))
        claims = await harmed(store.claim_next(worker, agents=["agent"], limit=3))
        assert isinstance(claims, tuple)
        assert ids(claims) == ["run-0", "run-1", "run-2"]
        assert [record.strikes async for record in store.records()] == [1, 1, 1, 0, 0]

    async def test_a_purge_counts_what_it_removed(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await enlisted(store)
        for n in range(3):
            claim = await begun(store, worker, a_run(f"run-{n}"))
            await store.settle(claim, Ending(status=Status.DONE, keep=timedelta(0)))
        assert await harmed(store.purge(limit=2)) == 2
        assert len(await listed(store)) == 1

    async def test_a_cancel_is_asked(self, store: PostgresStore, harmed: Harmed) -> None:
        worker = await enlisted(store)
        await begun(store, worker)
        await harmed(store.request_cancel("run-1"))
        assert await store.cancels(worker) == ("run-1",)


async def test_a_batch_that_the_server_still_works_on_is_not_written_beside_it(
    store: PostgresStore, proxy: CuttingProxy, url: str
) -> None:
    claim = await begun(store, await enlisted(store))
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute("select from holdfast.run for update")  # the write has to wait for this
        proxy.harm(Harm.CUT_AFTER_IT, WRITE)
        writing = asyncio.ensure_future(store.append(claim, a_write(1, b"once")))
        async with bounded():
            await proxy.landed.wait()
            # The first, which knows nothing of the cut, and the second.
            await until(lambda: _two_writes_wait(url))
        assert not writing.done()
        await other.rollback()
    async with bounded():
        await writing
    assert await bodies_of(store) == [b"begin", b"once"]
    await store.append(claim, a_write(2, b"goes on"))


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
        claim = await begun(impatient, await enlisted(impatient))
        proxy.harm(Harm.FALL_SILENT, WRITE)
        async with bounded():
            await impatient.append(claim, a_write(1, b"one"))
        assert proxy.landed.is_set()
        assert await bodies_of(impatient) == [b"begin", b"one"]

    async def test_in_the_end_the_server_is_given_up(self, proxy: CuttingProxy, impatient: PostgresStore) -> None:
        claim = await begun(impatient, await enlisted(impatient))
        proxy.harm(Harm.FALL_SILENT, WRITE, and_refuse=True)
        async with bounded():
            with pytest.raises(StoreUnavailable):
                await impatient.append(claim, a_write(1, b"one"))
        assert proxy.landed.is_set()
        proxy.refusing = False
        await impatient.append(claim, a_write(1, b"one"))
        assert await bodies_of(impatient) == [b"begin", b"one"]

    async def test_reading_goes_on_over_another_one(self, proxy: CuttingProxy, impatient: PostgresStore) -> None:
        await begun(impatient, await enlisted(impatient))
        await impatient.load("run-1")
        proxy.harm(Harm.FALL_SILENT, b"load_run")
        async with bounded():
            assert await bodies_of(impatient) == [b"begin"]
        assert proxy.landed.is_set()
