"""The change signal: one wait for changes of the store, any number of listeners."""

import asyncio

from tests.probe_store import ProbeStore

from holdfast.checkpoint.errors import StoreClosed, StoreUnavailable
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.run.info import RunInfo
from holdfast.runtime.changes import POLL_INTERVAL, ChangeSignal
from holdfast.runtime.operations.submitting import Submitter
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


async def test_a_change_between_two_waits_ends_the_second_and_one_call_waits_for_all_listeners() -> None:
    store = ProbeStore(MemoryStore())
    await store.open()
    changes = ChangeSignal(store, ManualClock())  # no listener polls: its time does not pass
    async with asyncio.timeout(60):
        with changes.listen() as first, changes.listen() as second:
            while "wait_for_change" not in store.calls:  # noqa: ASYNC110 - a call of a store has no event
                await asyncio.sleep(0)
            assert store.calls.count("wait_for_change") == 1
            await Submitter(StoreCheckpoints(store), SYSTEM_CLOCK).submit(RunInfo(run_id="r", agent_name="a"))
            await first.wait()
            await second.wait()


async def test_a_listener_is_woken_when_the_signal_closes() -> None:
    store = ProbeStore(MemoryStore())
    await store.open()
    changes = ChangeSignal(store, ManualClock())
    async with asyncio.timeout(60):
        with changes.listen() as listener:
            waiting = asyncio.create_task(listener.wait())
            await asyncio.sleep(0)
            await changes.close()
            await waiting
        await store.close()


async def test_the_timer_of_a_wait_that_has_ended_does_not_end_the_next_one() -> None:
    store, clock = ProbeStore(MemoryStore()), ManualClock()
    await store.open()
    with ChangeSignal(store, clock).listen() as listener:
        first = asyncio.create_task(listener.wait())
        await clock.advance(POLL_INTERVAL / 2)
        listener.wake()
        await first
        second = asyncio.create_task(listener.wait())
        await clock.advance(POLL_INTERVAL * 0.9)
        assert not second.done()
        await clock.advance(POLL_INTERVAL)
        assert second.done()
    await store.close()


async def test_a_listener_that_has_left_is_not_woken_and_the_last_one_ends_the_wait() -> None:
    store, clock = ProbeStore(MemoryStore()), ManualClock()
    await store.open()
    changes = ChangeSignal(store, clock)
    with changes.listen() as first:
        with changes.listen() as second:
            await clock.advance(POLL_INTERVAL / 10)
        changes.notify()
        assert (first._event.is_set(), second._event.is_set()) == (True, False)
        await clock.advance(POLL_INTERVAL / 10)
        assert _find_waits() == 1
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert _find_waits() == 0
    with changes.listen():
        await asyncio.sleep(0)
        assert _find_waits() == 1, "the next listener waits again"
    await changes.close()
    await store.close()


def _find_waits() -> int:
    return sum(task.get_name() == "holdfast-changes" for task in asyncio.all_tasks())


async def test_a_store_that_fails_is_asked_again_a_second_later() -> None:
    store, clock = ProbeStore(MemoryStore()), ManualClock()
    await store.open()
    changes = ChangeSignal(store, clock)
    store.fail("wait_for_change", StoreUnavailable("away"), StoreUnavailable("away"))
    with changes.listen():
        await clock.advance(POLL_INTERVAL * 0.9)
        assert "wait_for_change" not in store.calls
        await clock.advance(POLL_INTERVAL * 0.2)
        assert "wait_for_change" not in store.calls
        await clock.advance(POLL_INTERVAL)
        assert "wait_for_change" in store.calls
    await changes.close()
    await store.close()


async def test_listeners_are_woken_when_the_store_has_closed_and_when_the_signal_has_no_task() -> None:
    store = ProbeStore(MemoryStore())
    await store.open()
    changes = ChangeSignal(store, ManualClock())
    store.fail("wait_for_change", StoreClosed("closed"))
    with changes.listen() as listener:
        async with asyncio.timeout(60):
            await listener.wait()
        await asyncio.sleep(0)
        assert _find_waits() == 0
        changes._task = None
        await changes.close()
        async with asyncio.timeout(60):
            await listener.wait()
    await store.close()
