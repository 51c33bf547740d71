"""Timers and expiries when clocks jump, and signals that come before their wait, for both loops."""

from datetime import timedelta

import pytest
from tests.core.execution.both_loops import Waiter
from tests.simulated_host import SimulatedHost

from holdfast import App, Approve, RunWaiting
from holdfast.checkpoint.store import END
from holdfast.config import CheckpointSettings
from holdfast.runtime.operations.mailing import Mailer
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

HOUR = timedelta(hours=1)

pytestmark = pytest.mark.parametrize("loop", ["native", "pydantic_ai"])


async def test_a_clock_that_jumps_ahead_ends_each_timer_once(loop: str) -> None:
    clock = ManualClock()
    waiter = Waiter(loop, [("1", "sleep", {"seconds": 3600}), ("2", "sleep", {"seconds": 7200})])
    host = SimulatedHost(MemoryStore(clock=clock), settings=CheckpointSettings(), clock=clock)
    with pytest.raises(RunWaiting) as raised:
        await host.executor.run(waiter.agent, "go", run_id="r")
    assert raised.value.wake_at == clock.now() + HOUR
    await clock.advance(timedelta(days=400))
    assert (await host.resume(waiter.agent, "r")).output == "done"
    assert waiter.results == ["The time has come."] * 2


async def test_a_clock_that_jumped_back_ends_no_wait_too_early(loop: str) -> None:
    clock, behind = ManualClock(), ManualClock()
    await clock.advance(HOUR)
    store = MemoryStore(clock=clock)
    waiter = Waiter(loop, [("1", "sleep", {"seconds": 60}), ("2", "pay", {"amount": 200})], expires_in=HOUR)
    host = SimulatedHost(store, settings=CheckpointSettings(), clock=clock)
    with pytest.raises(RunWaiting) as first:
        await host.executor.run(waiter.agent, "go", run_id="r")
    await clock.advance(timedelta(seconds=60))
    late = SimulatedHost(store, settings=CheckpointSettings(), clock=behind)  # an hour behind the store
    with pytest.raises(RunWaiting) as second:
        await late.resume(waiter.agent, "r")
    assert second.value.calls == first.value.calls, "a timer or an expiry was changed"
    await Mailer(store, clock=behind).answer("r", "2", Approve())
    await behind.advance(HOUR + timedelta(seconds=60))
    assert (await late.resume(waiter.agent, "r")).output == "done"
    assert sorted(waiter.results) == ["The time has come.", "paid 200"]
    assert waiter.paid == [200]


async def test_signals_that_come_before_their_waits_are_taken_once_and_in_order(loop: str) -> None:
    wait = ("1", "wait_for", {"name": "paid"})
    waiter = Waiter(loop, [wait], [wait], [wait])
    async with App([waiter.agent], MemoryStore(), worker=False) as app:
        await app.submit("a", "go", run_id="r")
        for number in (1, 2):
            for _ in range(2):
                await app.signal("r", "paid", number, id=f"s{number}")
        with pytest.raises(RunWaiting, match="the signal paid"):
            await app.resume("r")
        assert waiter.results == [1, 2]
        await app.signal("r", "paid", 3)
        assert (await app.resume("r")).output == "done"
        assert app.store is not None
        assert (await app.store.load("r", after=END)).mail == ()
    assert waiter.results == [1, 2, 3]
