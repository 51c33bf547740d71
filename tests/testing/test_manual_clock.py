"""The clock that tests move by hand."""

import asyncio
from datetime import UTC, datetime, timedelta

from holdfast.clock import Clock
from holdfast.testing import ManualClock

SECOND = timedelta(seconds=1)


async def test_time_passes_only_when_it_is_advanced() -> None:
    clock: Clock = ManualClock(datetime(2031, 5, 1, tzinfo=UTC))
    assert (clock.now(), clock.now()) == (datetime(2031, 5, 1, tzinfo=UTC),) * 2
    assert isinstance(clock, ManualClock)
    await clock.advance(90 * SECOND)
    assert clock.now() == datetime(2031, 5, 1, 0, 1, 30, tzinfo=UTC)
    assert clock.monotonic() == 90


async def test_sleepers_wake_in_order_and_on_time() -> None:
    clock = ManualClock()
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: int) -> None:
        await clock.sleep(seconds * SECOND)
        woken.append((name, clock.monotonic()))

    sleepers = [asyncio.ensure_future(sleep(name, seconds)) for name, seconds in (("late", 3), ("soon", 1))]
    clock.call_later(2 * SECOND, lambda: woken.append(("called", clock.monotonic())))
    await clock.advance(2.5 * SECOND)
    assert woken == [("soon", 1), ("called", 2)]
    assert clock.waiting == 1
    await clock.advance(SECOND)
    assert woken[2:] == [("late", 3)]
    await asyncio.gather(*sleepers)


async def test_a_sleeper_can_sleep_again_within_one_advance() -> None:
    clock = ManualClock()
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(SECOND)
            ticks.append(clock.monotonic())

    ticking = asyncio.ensure_future(tick())
    await clock.advance(3 * SECOND)
    assert ticks == [1, 2, 3]
    ticking.cancel()
    await asyncio.wait([ticking])
    assert clock.waiting == 0


async def test_a_cancelled_timer_is_not_called() -> None:
    clock = ManualClock()
    called: list[str] = []
    clock.call_later(SECOND, lambda: called.append("cancelled")).cancel()
    clock.call_later(SECOND, lambda: called.append("kept"))
    await clock.advance(SECOND)
    assert called == ["kept"]


async def test_a_sleep_of_no_time_needs_no_advance() -> None:
    clock = ManualClock()
    await clock.sleep(timedelta(0))
    await clock.sleep(-SECOND)
    assert clock.monotonic() == 0


async def test_days_pass_in_a_few_jumps_and_a_long_sleep_ends_on_time() -> None:
    clock = ManualClock()
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep(SECOND)
            ticks.append(clock.monotonic())

    async def sleep_twice() -> list[float]:
        await clock.sleep(timedelta(hours=30))
        first = clock.monotonic()
        await clock.sleep(timedelta(hours=20))
        return [first, clock.monotonic()]

    ticking, sleeping = asyncio.ensure_future(tick()), asyncio.ensure_future(sleep_twice())
    await clock.advance(timedelta(days=3))
    assert await sleeping == [30 * 3600, 50 * 3600]
    assert ticks[:60] == list(range(1, 61)), "the first timers fire at their own time"
    assert len(ticks) < 130
    assert ticks[-1] == clock.monotonic() == 3 * 86400
    ticking.cancel()
    await asyncio.wait([ticking])
