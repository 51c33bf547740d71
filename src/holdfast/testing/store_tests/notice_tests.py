"""Tests of drafts, cancel requests and notifications of changes."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RELEASE_STATUSES, TERMINAL_STATUSES, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    load_contents,
    load_record,
    make_append,
    make_mail,
    make_run,
)

_LONG, _MOMENT = timedelta(hours=1), timedelta(milliseconds=1)


class DraftTests(StoreUnderTest):
    async def test_the_newest_draft_is_read(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        other = await create_claimed(store, worker, make_run("run-2"))
        assert await store.read_draft("run-1") is None
        await store.put_draft(claim, b"Hel")
        await store.put_draft(other, b"another one")
        await store.put_draft(claim, b"Hello \x00\xff" * 100)
        assert await store.read_draft("run-1") == b"Hello \x00\xff" * 100
        assert await store.read_draft("run-2") == b"another one"

    async def test_a_dropped_draft_is_gone(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.put_draft(claim, None)
        await store.put_draft(claim, None)
        assert await store.read_draft("run-1") is None

    async def test_a_draft_changes_nothing_else(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        before = await load_contents(store)
        await store.put_draft(claim, b"Hello")
        await store.read_draft("run-1", keep_for=_LONG)
        assert await load_contents(store) == before
        await store.append(claim, make_append(1, b"one"))
        assert await store.read_draft("run-1") == b"Hello"

    async def test_a_draft_of_an_earlier_claim_is_void(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.claim("run-1", worker, steal=True)
        assert await store.read_draft("run-1") is None

    async def test_an_earlier_claim_puts_and_drops_no_draft(self, store: RunStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        new = await store.claim("run-1", worker, steal=True)
        await store.put_draft(old, b"stale")
        assert await store.read_draft("run-1") is None
        await store.put_draft(new, b"Hello")
        await store.put_draft(old, b"stale")
        await store.put_draft(old, None)
        assert await store.read_draft("run-1") == b"Hello"

    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_released_run_has_no_draft(self, store: RunStore, worker: str, status: RunStatus) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.release(claim, Release(status=status))
        assert await store.read_draft("run-1") is None
        await store.put_draft(claim, b"late")
        assert await store.read_draft("run-1") is None

    async def test_a_draft_ends_with_its_run(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.put_draft(claim, b"Hello")
        await store.remove("run-1", claim=claim)
        assert await store.read_draft("run-1") is None
        await store.put_draft(claim, b"late")
        await create_claimed(store, worker)
        assert await store.read_draft("run-1") is None

    async def test_drafts_are_requested_for_a_while(self, store: RunStore, worker: str) -> None:
        for n in range(1, 4):
            await create_claimed(store, worker, make_run(f"run-{n}"))
        await store.read_draft("run-1", keep_for=_LONG)
        await store.read_draft("run-2", keep_for=_MOMENT)
        await store.read_draft("run-3")
        await asyncio.sleep(_MOMENT.total_seconds())
        assert list((await store.pending(worker)).drafts) == ["run-1"]

    async def test_a_short_request_does_not_end_a_long_one(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        await store.read_draft("run-1", keep_for=_LONG)
        await store.read_draft("run-1", keep_for=_MOMENT)
        await store.read_draft("run-1")
        await asyncio.sleep(_MOMENT.total_seconds())
        assert list((await store.pending(worker)).drafts) == ["run-1"]

    async def test_drafts_are_requested_of_the_worker_that_holds_the_run(self, store: RunStore, worker: str) -> None:
        other = await add_worker(store)
        await store.read_draft("run-1", keep_for=_LONG)
        await store.read_draft("unknown", keep_for=_LONG)
        assert list((await store.pending(worker)).drafts) == []
        claim = await create_claimed(store, worker)
        assert [list((await store.pending(each)).drafts) for each in (worker, other)] == [["run-1"], []]
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        assert list((await store.pending(worker)).drafts) == []
        await store.claim("run-1", other)
        assert [list((await store.pending(each)).drafts) for each in (worker, other)] == [[], ["run-1"]]


class SharedDraftTests(StoreUnderTest):
    async def test_other_stores_at_the_same_place_see_drafts_and_requests(
        self, store: RunStore, location: str, worker: str
    ) -> None:
        claim = await create_claimed(store, worker)
        async with self.open_store(location) as other:
            await other.read_draft("run-1", keep_for=_LONG)
            assert list((await store.pending(worker)).drafts) == ["run-1"]
            await store.put_draft(claim, b"Hello")
            assert await other.read_draft("run-1") == b"Hello"
            await store.put_draft(claim, None)
            assert await other.read_draft("run-1") is None


Change = Callable[[RunStore, str, str], Awaitable[None]]


async def _submit(store: RunStore, worker_id: str, run_id: str) -> None:
    await store.create(make_run(f"new-{run_id}"))


async def _release(store: RunStore, worker_id: str, run_id: str) -> None:
    await store.release(await store.claim(run_id, worker_id, steal=True), Release(status=RunStatus.INTERRUPTED))


async def _complete(store: RunStore, worker_id: str, run_id: str) -> None:
    await store.release(await store.claim(run_id, worker_id, steal=True), Release(status=RunStatus.DONE))


async def _remove(store: RunStore, worker_id: str, run_id: str) -> None:
    await store.remove(run_id, claim=await store.claim(run_id, worker_id, steal=True))


async def _cancel(store: RunStore, worker_id: str, run_id: str) -> None:
    await store.request_cancel(run_id)


async def _post(store: RunStore, worker_id: str, run_id: str) -> None:
    await store.post(run_id, make_mail())


CHANGES = {
    "submitted": _submit,
    "released": _release,
    "completed": _complete,
    "removed": _remove,
    "cancelled": _cancel,
    "posted": _post,
}


async def is_woken(waiting: RunStore, acting: RunStore, worker_id: str, change: Change, timeout: timedelta) -> bool:
    """Return the result of `wait_for_change` while `change` is made repeatedly, because the wait may miss the first."""
    for n in range(20):
        await create_claimed(acting, worker_id, make_run(f"run-{n}"))
    wait = asyncio.ensure_future(waiting.wait_for_change(timeout / 2))
    for n in range(20):
        await asyncio.wait([wait], timeout=0.01 * (n + 1))
        if wait.done():
            break
        await change(acting, worker_id, f"run-{n}")
    async with asyncio.timeout(timeout.total_seconds()):
        return await wait


@pytest.mark.asyncio
class CancelTests(StoreUnderTest):
    async def test_a_cancel_reaches_the_worker_that_holds_the_run(self, store: RunStore, worker: str) -> None:
        other = await add_worker(store)
        for n in range(3):
            await create_claimed(store, worker, make_run(f"run-{n}"))
        await create_claimed(store, other, make_run("others"))
        assert list((await store.pending(worker)).cancels) == []
        await store.request_cancel("run-0")
        await store.request_cancel("run-2")
        await store.request_cancel("run-2")
        await store.request_cancel("others")
        assert sorted((await store.pending(worker)).cancels) == ["run-0", "run-2"]
        assert list((await store.pending(other)).cancels) == ["others"]
        assert list((await store.pending("unknown")).cancels) == []
        assert [(await load_record(store, f"run-{n}")).cancel_requested for n in range(3)] == [True, False, True]

    async def test_a_cancel_request_outlasts_its_owners(self, store: RunStore, worker: str) -> None:
        await store.create(make_run())
        await store.request_cancel("run-1")
        assert list((await store.pending(worker)).cancels) == []
        claim = await store.claim("run-1", worker)
        assert list((await store.pending(worker)).cancels) == ["run-1"]
        for status in sorted(RELEASE_STATUSES - TERMINAL_STATUSES):
            await store.release(claim, Release(status=status))
            assert list((await store.pending(worker)).cancels) == []
            assert (await load_record(store)).cancel_requested
            claim = await store.claim("run-1", worker, statuses=RELEASE_STATUSES)
            assert list((await store.pending(worker)).cancels) == ["run-1"]
        new_owner = await add_worker(store)
        await store.claim("run-1", new_owner, steal=True)
        assert list((await store.pending(worker)).cancels) == []
        assert list((await store.pending(new_owner)).cancels) == ["run-1"]

    @pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES - {RunStatus.DONE}))  # which such a run cannot be
    async def test_a_cancel_request_ends_with_the_run(self, store: RunStore, worker: str, status: RunStatus) -> None:
        claim = await create_claimed(store, worker)
        await store.request_cancel("run-1")
        await store.release(claim, Release(status=status))
        await store.claim("run-1", worker, statuses={status})
        assert list((await store.pending(worker)).cancels) == []
        assert not (await load_record(store)).cancel_requested

    async def test_a_cancel_request_changes_nothing_else(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        before, journal = await load_contents(store)
        await store.request_cancel("run-1")
        after, unchanged = await load_contents(store)
        assert unchanged == journal
        assert (after.status, after.token, after.strikes) == (before.status, before.token, before.strikes)
        assert (after.owner, after.owner_alive, after.progress) == (worker, True, before.progress)

    async def test_an_unknown_run_cannot_be_cancelled(self, store: RunStore) -> None:
        with pytest.raises(RunNotFound):
            await store.request_cancel("run-1")


@pytest.mark.asyncio
class ChangeNotificationTests(StoreUnderTest):
    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_a_change_ends_the_wait(self, store: RunStore, worker: str, change: Change) -> None:
        assert await is_woken(store, store, worker, change, self.timeout)

    async def test_a_change_ends_all_waits(self, store: RunStore, worker: str) -> None:
        others = [asyncio.ensure_future(store.wait_for_change(self.timeout / 2)) for _ in range(3)]
        assert await is_woken(store, store, worker, _submit, self.timeout)
        async with asyncio.timeout(self.timeout.total_seconds()):
            assert await asyncio.gather(*others) == [True] * 3

    async def test_a_wait_without_a_change_times_out(self, store: RunStore) -> None:
        await store.create(make_run())
        async with asyncio.timeout(self.timeout.total_seconds()):
            # Spurious notifications are allowed, but an idle store must time out sooner or later.
            for _ in range(1000):
                if not await store.wait_for_change(timedelta(milliseconds=20)):
                    return
        pytest.fail("every wait reports a change, though nothing changes")

    async def test_a_cancelled_wait_affects_no_other(self, store: RunStore, worker: str) -> None:
        waiting = asyncio.ensure_future(store.wait_for_change(self.timeout))
        await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert await is_woken(store, store, worker, _submit, self.timeout)
