"""Clauses about what a durable store keeps when it is closed and opened again, and what it says about damage."""

import asyncio
from datetime import timedelta

import pytest

from holdfast.checkpoint.claim import ProcessIdentity
from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunDamaged, StoreError
from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.notifications import CHANGES, Change, is_woken
from holdfast.testing.store_suite.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    get_run_ids,
    list_run_ids,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_run,
)


class DurableStoreUnderTest(StoreUnderTest):
    """What a subclass says about a durable store, beside `factory` and `location`."""

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        """Flip a bit in `body`, which is the run's second entry, behind the store's back. The store is closed."""
        raise NotImplementedError("override `damage`: change one stored entry as a failing disk would")

    async def wait_until_idle(self, location: str, killed: ProcessIdentity) -> None:
        """Return once nothing is under way any more of what a killed process had sent to a server.

        With the process everything ends that a store does by itself, so for such a store there is nothing to wait for.
        A server may finish what it was sent; `holdfast.testing.store_process.connection_name` tells it whose that was.
        """

    async def reopen(self, store: CheckpointStore, location: str) -> CheckpointStore:
        """The same runs in a new store, after the old one was closed."""
        await store.close()
        again = self.build(location)
        await again.open()
        return again


@pytest.mark.asyncio
class ReopenTests(DurableStoreUnderTest):
    async def test_the_store_says_that_it_is_durable(self, store: CheckpointStore) -> None:
        assert store.durable

    async def test_everything_is_there_after_reopening(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        await store.create(make_run("queued", b"\0\xff", meta=b"\0\xff", progress=b"", parent_run_id="parent"))
        rewritten = await create_claimed(store, worker, make_run("rewritten", b"zero", b"one"))
        await store.append(rewritten, make_append(2, b"compacted", b"new", rewrite=True, step_finished=True))
        await store.append(rewritten, make_append(4, b"newer", progress=b"further"))
        await store.request_cancel("rewritten")
        for status in sorted(RELEASE_STATUSES):
            claim = await create_claimed(store, worker, make_run(status, caller_id=status, agent_name=status))
            await store.release(
                claim,
                Release(
                    status=status, reason="because", strikes=3, delay=timedelta(hours=1), retention=timedelta(hours=2)
                ),
            )
        await store.remove("done")
        await store.deregister_worker(worker)
        names = await list_run_ids(store)
        before = [await load_contents(store, name) for name in names]
        store = await self.reopen(store, location)
        try:
            assert await list_run_ids(store) == names
            assert [await load_contents(store, name) for name in names] == before
        finally:
            await store.close()

    async def test_runs_go_on_after_reopening(self, store: CheckpointStore, worker: str, location: str) -> None:
        old = await create_claimed(store, worker)
        await store.append(old, make_append(1, b"before"))
        await store.release(old, Release(status=RunStatus.INTERRUPTED))
        store = await self.reopen(store, location)
        try:
            worker = await add_worker(store)
            [new] = await store.claim_next(worker, agents=["agent"], limit=1)
            with pytest.raises(ClaimLost):
                await store.append(old, make_append(2, b"late"))
            await store.append(new, make_append(2, b"after"))
            assert await load_bodies(store) == [b"begin", b"before", b"after"]
        finally:
            await store.close()

    async def test_tokens_grow_over_removal_and_reopening(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        tokens = []
        for _ in range(3):
            claim = await create_claimed(store, worker)
            tokens.append(claim.token)
            await store.remove("run-1", claim=claim)
            store = await self.reopen(store, location)
            worker = await add_worker(store)
        await store.close()
        assert tokens[0] < tokens[1] < tokens[2]

    async def test_backoff_and_expiry_hold_over_reopening(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        later = await create_claimed(store, worker, make_run("later"))
        await store.release(later, Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1)))
        for name, keep in (("expired", timedelta(0)), ("kept", timedelta(hours=1))):
            claim = await create_claimed(store, worker, make_run(name))
            await store.release(claim, Release(status=RunStatus.FAILED, retention=keep))
        store = await self.reopen(store, location)
        try:
            worker = await add_worker(store)
            assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
            assert await store.purge() == 1
            assert await list_run_ids(store) == ["later", "kept"]
        finally:
            await store.close()

    async def test_closing_finishes_the_writes_under_way(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(30)]
        writes = [asyncio.ensure_future(store.append(claim, make_append(1, b"more"))) for claim in claims]
        await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        store = await self.reopen(store, location)
        try:
            results = await asyncio.gather(*writes, return_exceptions=True)
            for claim, result in zip(claims, results, strict=True):
                assert result is None or isinstance(result, StoreError)
                expected = [b"begin"] if result else [b"begin", b"more"]
                assert await load_bodies(store, claim.run_id) == expected, result
        finally:
            await store.close()


@pytest.mark.asyncio
class SharedStoreTests(DurableStoreUnderTest):
    async def test_two_stores_on_one_place_see_the_same_runs(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        second = self.build(location)
        await second.open()
        try:
            claim = await create_claimed(store, worker)
            await store.append(claim, make_append(1, b"more", progress=b"further"))
            assert await load_contents(second) == await load_contents(store)
            other = await add_worker(second)
            with pytest.raises(RunBusy):
                await second.claim("run-1", other)
            stolen = await second.claim("run-1", other, steal=True)
            assert stolen.token > claim.token
            with pytest.raises(ClaimLost):
                await store.append(claim, make_append(2, b"late"))
            await second.append(stolen, make_append(2, b"by the other"))
            assert await load_bodies(store) == [b"begin", b"more", b"by the other"]
            await second.remove("run-1", claim=stolen)
            assert await list_run_ids(store) == []
        finally:
            await second.close()

    @pytest.mark.parametrize("stir", CHANGES.values(), ids=CHANGES.keys())
    async def test_a_change_wakes_who_waits_at_another_store(
        self, store: CheckpointStore, worker: str, location: str, stir: Change
    ) -> None:
        second = self.build(location)
        await second.open()
        try:
            assert await is_woken(second, store, worker, stir, self.timeout)
        finally:
            await second.close()

    async def test_a_cancel_reaches_the_worker_at_another_store(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        second = self.build(location)
        await second.open()
        try:
            await create_claimed(store, worker)
            await second.request_cancel("run-1")
            assert list(await store.pending_cancellations(worker)) == ["run-1"]
        finally:
            await second.close()


@pytest.mark.asyncio
class DamageTests(DurableStoreUnderTest):
    async def test_a_damaged_run_is_named_left_untouched_and_harms_no_other(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        for name in ("first", "damaged", "last"):
            claim = await create_claimed(
                store, worker, make_run(name, b"begin", b"the body of %s" % name.encode(), b"end")
            )
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        await store.deregister_worker(worker)
        await store.close()
        self.damage(location, "damaged", b"the body of damaged")
        store = self.build(location)
        await store.open()
        try:
            for _ in range(2):
                with pytest.raises(RunDamaged) as damaged:
                    await store.load("damaged")
                assert damaged.value.run_id == "damaged"
            assert "damaged" in await list_run_ids(store)
            worker = await add_worker(store)
            for name in ("first", "last"):
                claim = await store.claim(name, worker)
                await store.append(claim, make_append(3, b"goes on"))
                assert len(await load_bodies(store, name)) == 4
            with pytest.raises(RunDamaged):
                await store.load("damaged")
            await store.remove("damaged")
            assert await list_run_ids(store) == ["first", "last"]
            assert (await load_record(store, "first")).owner_alive
        finally:
            await store.close()
