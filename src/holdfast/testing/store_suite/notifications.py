"""Clauses about what workers tell each other through the store."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RELEASE_STATUSES, TERMINAL_STATUSES, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    load_contents,
    load_record,
    make_run,
)

Change = Callable[[CheckpointStore, str, str], Awaitable[None]]


async def _submit(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.create(make_run(f"new-{run_id}"))


async def _release(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.release(await store.claim(run_id, worker_id, steal=True), Release(status=RunStatus.INTERRUPTED))


async def _complete(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.release(await store.claim(run_id, worker_id, steal=True), Release(status=RunStatus.DONE))


async def _remove(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.remove(run_id, claim=await store.claim(run_id, worker_id, steal=True))


async def _cancel(store: CheckpointStore, worker_id: str, run_id: str) -> None:
    await store.request_cancel(run_id)


CHANGES = {"submitted": _submit, "released": _release, "settled": _complete, "removed": _remove, "cancelled": _cancel}


async def is_woken(
    waiting: CheckpointStore, acting: CheckpointStore, worker_id: str, change: Change, timeout: timedelta
) -> bool:
    """What `changed` gives while `stir` is done again and again: the wait may begin too late for the first of them."""
    for n in range(20):
        await create_claimed(acting, worker_id, make_run(f"run-{n}"))
    sign = asyncio.ensure_future(waiting.wait_for_change(timeout / 2))
    for n in range(20):
        await asyncio.wait([sign], timeout=0.01 * (n + 1))
        if sign.done():
            break
        await change(acting, worker_id, f"run-{n}")
    async with asyncio.timeout(timeout.total_seconds()):
        return await sign


@pytest.mark.asyncio
class CancelTests(StoreUnderTest):
    async def test_a_cancel_reaches_the_worker_that_holds_the_run(self, store: CheckpointStore, worker: str) -> None:
        other = await add_worker(store)
        for n in range(3):
            await create_claimed(store, worker, make_run(f"run-{n}"))
        await create_claimed(store, other, make_run("others"))
        assert list(await store.pending_cancellations(worker)) == []
        await store.request_cancel("run-0")
        await store.request_cancel("run-2")
        await store.request_cancel("run-2")
        await store.request_cancel("others")
        assert sorted(await store.pending_cancellations(worker)) == ["run-0", "run-2"]
        assert list(await store.pending_cancellations(other)) == ["others"]
        assert list(await store.pending_cancellations("nobody")) == []
        assert [(await load_record(store, f"run-{n}")).cancel_requested for n in range(3)] == [True, False, True]

    async def test_a_cancel_stays_asked_over_owners(self, store: CheckpointStore, worker: str) -> None:
        await store.create(make_run())
        await store.request_cancel("run-1")
        assert list(await store.pending_cancellations(worker)) == []
        claim = await store.claim("run-1", worker)
        assert list(await store.pending_cancellations(worker)) == ["run-1"]
        for status in sorted(RELEASE_STATUSES - TERMINAL_STATUSES):
            await store.release(claim, Release(status=status))
            assert list(await store.pending_cancellations(worker)) == []
            assert (await load_record(store)).cancel_requested
            claim = await store.claim("run-1", worker, statuses=RELEASE_STATUSES)
            assert list(await store.pending_cancellations(worker)) == ["run-1"]
        thief = await add_worker(store)
        await store.claim("run-1", thief, steal=True)
        assert list(await store.pending_cancellations(worker)) == []
        assert list(await store.pending_cancellations(thief)) == ["run-1"]

    @pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
    async def test_a_cancel_is_forgotten_once_the_run_is_over(
        self, store: CheckpointStore, worker: str, status: RunStatus
    ) -> None:
        claim = await create_claimed(store, worker)
        await store.request_cancel("run-1")
        await store.release(claim, Release(status=status))
        await store.claim("run-1", worker, statuses={status})
        assert list(await store.pending_cancellations(worker)) == []
        assert not (await load_record(store)).cancel_requested

    async def test_asking_changes_nothing_else(self, store: CheckpointStore, worker: str) -> None:
        await create_claimed(store, worker)
        before, journal = await load_contents(store)
        await store.request_cancel("run-1")
        after, unchanged = await load_contents(store)
        assert unchanged == journal
        assert (after.status, after.token, after.strikes) == (before.status, before.token, before.strikes)
        assert (after.owner, after.owner_alive, after.progress) == (worker, True, before.progress)

    async def test_a_run_that_never_was_cannot_be_cancelled(self, store: CheckpointStore) -> None:
        with pytest.raises(RunNotFound):
            await store.request_cancel("run-1")


@pytest.mark.asyncio
class ChangeNotificationTests(StoreUnderTest):
    @pytest.mark.parametrize("stir", CHANGES.values(), ids=CHANGES.keys())
    async def test_who_waits_for_a_change_is_woken(self, store: CheckpointStore, worker: str, stir: Change) -> None:
        assert await is_woken(store, store, worker, stir, self.timeout)

    async def test_all_who_wait_are_woken(self, store: CheckpointStore, worker: str) -> None:
        others = [asyncio.ensure_future(store.wait_for_change(self.timeout / 2)) for _ in range(3)]
        assert await is_woken(store, store, worker, _submit, self.timeout)
        async with asyncio.timeout(self.timeout.total_seconds()):
            assert await asyncio.gather(*others) == [True] * 3

    async def test_without_a_change_the_wait_ends_by_itself(self, store: CheckpointStore) -> None:
        await store.create(make_run())
        async with asyncio.timeout(self.timeout.total_seconds()):
            # A sign may come too often. In a quiet store it stays away sooner or later.
            for _ in range(1000):
                if not await store.wait_for_change(timedelta(milliseconds=20)):
                    return
        pytest.fail("there is always a sign, though nothing changes")

    async def test_a_wait_that_is_given_up_harms_nobody(self, store: CheckpointStore, worker: str) -> None:
        waiting = asyncio.ensure_future(store.wait_for_change(self.timeout))
        await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await is_woken(store, store, worker, _submit, self.timeout)
