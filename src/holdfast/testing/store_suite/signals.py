"""Clauses about what workers tell each other through the store."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.lifecycle import ENDINGS, OVER, Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.subject import (
    StoreUnderTest,
    a_run,
    begun,
    contents,
    enlisted,
    record_of,
)

Stir = Callable[[CheckpointStore, str, str], Awaitable[None]]


async def _submit(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.create(a_run(f"new-{run_id}"))


async def _release(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.settle(await store.claim(run_id, worker_id, steal=True), Ending(status=Status.INTERRUPTED))


async def _complete(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.settle(await store.claim(run_id, worker_id, steal=True), Ending(status=Status.DONE))


async def _remove(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.remove(run_id, claim=await store.claim(run_id, worker_id, steal=True))


async def _cancel(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.request_cancel(run_id)


STIRS = {"submitted": _submit, "released": _release, "settled": _complete, "removed": _remove, "cancelled": _cancel}


async def wakes(
    waiting: CheckpointStore, acting: CheckpointStore, worker_id: str, stir: Stir, patience: timedelta
) -> bool:
    """What `changed` gives while `stir` is done again and again: the wait may begin too late for the first of them."""
    for n in range(20):
        await begun(acting, worker_id, a_run(f"run-{n}"))
    sign = asyncio.ensure_future(waiting.changed(patience / 2))
    for n in range(20):
        await asyncio.wait([sign], timeout=0.01 * (n + 1))
        if sign.done():
            break
        await stir(acting, worker_id, f"run-{n}")
    async with asyncio.timeout(patience.total_seconds()):
        return await sign


@pytest.mark.asyncio
class CancelClauses(StoreUnderTest):
    async def test_a_cancel_reaches_the_worker_that_holds_the_run(self, store: CheckpointStore, worker: str) -> None:
        other = await enlisted(store)
        for n in range(3):
            await begun(store, worker, a_run(f"run-{n}"))
        await begun(store, other, a_run("others"))
        assert list(await store.cancels(worker)) == []
        await store.request_cancel("run-0")
        await store.request_cancel("run-2")
        await store.request_cancel("run-2")
        await store.request_cancel("others")
        assert sorted(await store.cancels(worker)) == ["run-0", "run-2"]
        assert list(await store.cancels(other)) == ["others"]
        assert list(await store.cancels("nobody")) == []
        assert [(await record_of(store, f"run-{n}")).cancel_requested for n in range(3)] == [True, False, True]

    async def test_a_cancel_stays_asked_over_owners(self, store: CheckpointStore, worker: str) -> None:
        await store.create(a_run())
        await store.request_cancel("run-1")
        assert list(await store.cancels(worker)) == []
        claim = await store.claim("run-1", worker)
        assert list(await store.cancels(worker)) == ["run-1"]
        for status in sorted(ENDINGS - OVER):
            await store.settle(claim, Ending(status=status))
            assert list(await store.cancels(worker)) == []
            assert (await record_of(store)).cancel_requested
            claim = await store.claim("run-1", worker, statuses=ENDINGS)
            assert list(await store.cancels(worker)) == ["run-1"]
        thief = await enlisted(store)
        await store.claim("run-1", thief, steal=True)
        assert list(await store.cancels(worker)) == []
        assert list(await store.cancels(thief)) == ["run-1"]

    @pytest.mark.parametrize("status", sorted(OVER))
    async def test_a_cancel_is_forgotten_once_the_run_is_over(
        self, store: CheckpointStore, worker: str, status: Status
    ) -> None:
        claim = await begun(store, worker)
        await store.request_cancel("run-1")
        await store.settle(claim, Ending(status=status))
        await store.claim("run-1", worker, statuses={status})
        assert list(await store.cancels(worker)) == []
        assert not (await record_of(store)).cancel_requested

    async def test_asking_changes_nothing_else(self, store: CheckpointStore, worker: str) -> None:
        await begun(store, worker)
        before, journal = await contents(store)
        await store.request_cancel("run-1")
        after, unchanged = await contents(store)
        assert unchanged == journal
        assert (after.status, after.token, after.strikes) == (before.status, before.token, before.strikes)
        assert (after.owner, after.owner_alive, after.progress) == (worker, True, before.progress)

    async def test_a_run_that_never_was_cannot_be_cancelled(self, store: CheckpointStore) -> None:
        with pytest.raises(RunNotFound):
            await store.request_cancel("run-1")


@pytest.mark.asyncio
class ChangeClauses(StoreUnderTest):
    @pytest.mark.parametrize("stir", STIRS.values(), ids=STIRS.keys())
    async def test_who_waits_for_a_change_is_woken(self, store: CheckpointStore, worker: str, stir: Stir) -> None:
        assert await wakes(store, store, worker, stir, self.patience)

    async def test_all_who_wait_are_woken(self, store: CheckpointStore, worker: str) -> None:
        others = [asyncio.ensure_future(store.changed(self.patience / 2)) for _ in range(3)]
        assert await wakes(store, store, worker, _submit, self.patience)
        async with asyncio.timeout(self.patience.total_seconds()):
            assert await asyncio.gather(*others) == [True] * 3

    async def test_without_a_change_the_wait_ends_by_itself(self, store: CheckpointStore) -> None:
        await store.create(a_run())
        async with asyncio.timeout(self.patience.total_seconds()):
            # A sign may come too often. In a quiet store it stays away sooner or later.
            for _ in range(1000):
                if not await store.changed(timedelta(milliseconds=20)):
                    return
        pytest.fail("there is always a sign, though nothing changes")

    async def test_a_wait_that_is_given_up_harms_nobody(self, store: CheckpointStore, worker: str) -> None:
        waiting = asyncio.ensure_future(store.changed(self.patience))
        await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await wakes(store, store, worker, _submit, self.patience)
