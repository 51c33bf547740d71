"""The memory store uses the clock that it was given."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from holdfast.checkpoint.record import Release, RunStatus
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    get_run_ids,
    load_record,
    make_run,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(clock=clock)
    await store.open()
    yield store
    await store.close()


async def test_a_backoff_ends_when_its_time_has_passed(store: MemoryStore, clock: ManualClock) -> None:
    worker = await add_worker(store)
    await store.release(
        await create_claimed(store, worker), Release(status=RunStatus.INTERRUPTED, delay=timedelta(seconds=30))
    )
    await clock.advance(timedelta(seconds=29))
    assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == []
    await clock.advance(timedelta(seconds=1))
    assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == ["run-1"]


async def test_what_is_kept_expires_when_its_time_has_passed(store: MemoryStore, clock: ManualClock) -> None:
    worker = await add_worker(store)
    await store.release(
        await create_claimed(store, worker), Release(status=RunStatus.DONE, retention=timedelta(days=7))
    )
    await clock.advance(timedelta(days=6))
    assert await store.purge() == 0
    await clock.advance(timedelta(days=1))
    assert await store.purge() == 1


async def test_records_carry_the_times_of_the_clock(store: MemoryStore, clock: ManualClock) -> None:
    began = clock.now()
    await store.create(make_run())
    await clock.advance(timedelta(hours=1))
    await store.claim("run-1", await add_worker(store))
    record = await load_record(store)
    assert (record.created_at, record.updated_at) == (began, began + timedelta(hours=1))


async def test_a_wait_for_a_change_ends_with_the_clock(store: MemoryStore, clock: ManualClock) -> None:
    waiting = asyncio.ensure_future(store.wait_for_change(timedelta(hours=1)))
    await clock.advance(timedelta(minutes=59))
    assert not waiting.done()
    await clock.advance(timedelta(minutes=1))
    assert await waiting is False
    assert clock.waiting == 0


async def test_a_request_for_drafts_ends_when_its_time_has_passed(store: MemoryStore, clock: ManualClock) -> None:
    worker = await add_worker(store)
    await create_claimed(store, worker)
    await store.read_draft("run-1", keep_for=timedelta(seconds=30))
    await store.read_draft("run-1", keep_for=timedelta(seconds=10))
    await clock.advance(timedelta(seconds=29))
    assert (await store.pending(worker)).drafts == ("run-1",), "the longest request counts"
    await clock.advance(timedelta(seconds=1))
    assert (await store.pending(worker)).drafts == ()
    await store.read_draft("run-1", keep_for=timedelta(seconds=10))
    assert (await store.pending(worker)).drafts == ("run-1",)
