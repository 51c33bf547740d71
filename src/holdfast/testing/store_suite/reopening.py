"""Clauses about what a durable store keeps when it is closed and opened again, and what it says about damage."""

import asyncio
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunDamaged, StoreError
from holdfast.checkpoint.lifecycle import ENDINGS, Status
from holdfast.checkpoint.liveness import ProcessIdentity
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.signals import STIRS, Stir, wakes
from holdfast.testing.store_suite.subject import (
    StoreUnderTest,
    a_run,
    a_write,
    begun,
    bodies_of,
    contents,
    enlisted,
    ids,
    listed,
    record_of,
)


class DurableStoreUnderTest(StoreUnderTest):
    """What a subclass says about a durable store, beside `factory` and `location`."""

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        """Flip a bit in `body`, which is the run's second entry, behind the store's back. The store is closed."""
        raise NotImplementedError("override `damage`: change one stored entry as a failing disk would")

    async def quiet(self, location: str, killed: ProcessIdentity) -> None:
        """Return once nothing is under way any more of what a killed process had sent to a server.

        With the process everything ends that a store does by itself, so for such a store there is nothing to wait for.
        A server may finish what it was sent; `holdfast.testing.store_wire.connection_name` tells it whose that was.
        """

    async def reopened(self, store: CheckpointStore, location: str) -> CheckpointStore:
        """The same runs in a new store, after the old one was closed."""
        await store.close()
        again = self.build(location)
        await again.open()
        return again


@pytest.mark.asyncio
class ReopeningClauses(DurableStoreUnderTest):
    async def test_the_store_says_that_it_is_durable(self, store: CheckpointStore) -> None:
        assert store.durable

    async def test_everything_is_there_after_reopening(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        await store.create(a_run("queued", b"\0\xff", meta=b"\0\xff", progress=b"", parent_run_id="parent"))
        rewritten = await begun(store, worker, a_run("rewritten", b"zero", b"one"))
        await store.append(rewritten, a_write(2, b"compacted", b"new", replace=True, finished_step=True))
        await store.append(rewritten, a_write(4, b"newer", progress=b"further"))
        await store.request_cancel("rewritten")
        for status in sorted(ENDINGS):
            claim = await begun(store, worker, a_run(status, caller_id=status, agent_name=status))
            await store.settle(
                claim,
                Ending(status=status, reason="because", strikes=3, delay=timedelta(hours=1), keep=timedelta(hours=2)),
            )
        await store.remove("done")
        await store.discharge(worker)
        names = await listed(store)
        before = [await contents(store, name) for name in names]
        store = await self.reopened(store, location)
        try:
            assert await listed(store) == names
            assert [await contents(store, name) for name in names] == before
        finally:
            await store.close()

    async def test_runs_go_on_after_reopening(self, store: CheckpointStore, worker: str, location: str) -> None:
        old = await begun(store, worker)
        await store.append(old, a_write(1, b"before"))
        await store.settle(old, Ending(status=Status.INTERRUPTED))
        store = await self.reopened(store, location)
        try:
            worker = await enlisted(store)
            [new] = await store.claim_next(worker, agents=["agent"], limit=1)
            with pytest.raises(ClaimLost):
                await store.append(old, a_write(2, b"late"))
            await store.append(new, a_write(2, b"after"))
            assert await bodies_of(store) == [b"begin", b"before", b"after"]
        finally:
            await store.close()

    async def test_tokens_grow_over_removal_and_reopening(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        tokens = []
        for _ in range(3):
            claim = await begun(store, worker)
            tokens.append(claim.token)
            await store.remove("run-1", claim=claim)
            store = await self.reopened(store, location)
            worker = await enlisted(store)
        await store.close()
        assert tokens[0] < tokens[1] < tokens[2]

    async def test_backoff_and_expiry_hold_over_reopening(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        later = await begun(store, worker, a_run("later"))
        await store.settle(later, Ending(status=Status.INTERRUPTED, delay=timedelta(hours=1)))
        for name, keep in (("expired", timedelta(0)), ("kept", timedelta(hours=1))):
            claim = await begun(store, worker, a_run(name))
            await store.settle(claim, Ending(status=Status.FAILED, keep=keep))
        store = await self.reopened(store, location)
        try:
            worker = await enlisted(store)
            assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
            assert await store.purge() == 1
            assert await listed(store) == ["later", "kept"]
        finally:
            await store.close()

    async def test_closing_finishes_the_writes_under_way(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        claims = [await begun(store, worker, a_run(f"run-{n}")) for n in range(30)]
        writes = [asyncio.ensure_future(store.append(claim, a_write(1, b"more"))) for claim in claims]
        await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        store = await self.reopened(store, location)
        try:
            results = await asyncio.gather(*writes, return_exceptions=True)
            for claim, result in zip(claims, results, strict=True):
                assert result is None or isinstance(result, StoreError)
                expected = [b"begin"] if result else [b"begin", b"more"]
                assert await bodies_of(store, claim.run_id) == expected, result
        finally:
            await store.close()


@pytest.mark.asyncio
class SharingClauses(DurableStoreUnderTest):
    async def test_two_stores_on_one_place_see_the_same_runs(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        second = self.build(location)
        await second.open()
        try:
            claim = await begun(store, worker)
            await store.append(claim, a_write(1, b"more", progress=b"further"))
            assert await contents(second) == await contents(store)
            other = await enlisted(second)
            with pytest.raises(RunBusy):
                await second.claim("run-1", other)
            stolen = await second.claim("run-1", other, steal=True)
            assert stolen.token > claim.token
            with pytest.raises(ClaimLost):
                await store.append(claim, a_write(2, b"late"))
            await second.append(stolen, a_write(2, b"by the other"))
            assert await bodies_of(store) == [b"begin", b"more", b"by the other"]
            await second.remove("run-1", claim=stolen)
            assert await listed(store) == []
        finally:
            await second.close()

    @pytest.mark.parametrize("stir", STIRS.values(), ids=STIRS.keys())
    async def test_a_change_wakes_who_waits_at_another_store(
        self, store: CheckpointStore, worker: str, location: str, stir: Stir
    ) -> None:
        second = self.build(location)
        await second.open()
        try:
            assert await wakes(second, store, worker, stir, self.patience)
        finally:
            await second.close()

    async def test_a_cancel_reaches_the_worker_at_another_store(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        second = self.build(location)
        await second.open()
        try:
            await begun(store, worker)
            await second.request_cancel("run-1")
            assert list(await store.cancels(worker)) == ["run-1"]
        finally:
            await second.close()


@pytest.mark.asyncio
class DamageClauses(DurableStoreUnderTest):
    async def test_a_damaged_run_is_named_left_untouched_and_harms_no_other(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        for name in ("first", "damaged", "last"):
            claim = await begun(store, worker, a_run(name, b"begin", b"the body of %s" % name.encode(), b"end"))
            await store.settle(claim, Ending(status=Status.INTERRUPTED))
        await store.discharge(worker)
        await store.close()
        self.damage(location, "damaged", b"the body of damaged")
        store = self.build(location)
        await store.open()
        try:
            for _ in range(2):
                with pytest.raises(RunDamaged) as damaged:
                    await store.load("damaged")
                assert damaged.value.run_id == "damaged"
            assert "damaged" in await listed(store)
            worker = await enlisted(store)
            for name in ("first", "last"):
                claim = await store.claim(name, worker)
                await store.append(claim, a_write(3, b"goes on"))
                assert len(await bodies_of(store, name)) == 4
            with pytest.raises(RunDamaged):
                await store.load("damaged")
            await store.remove("damaged")
            assert await listed(store) == ["first", "last"]
            assert (await record_of(store, "first")).owner_alive
        finally:
            await store.close()
