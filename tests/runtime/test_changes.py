"""The change signal: one wait for changes of the store, any number of listeners."""

import asyncio

from tests.probe_store import ProbeStore

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
