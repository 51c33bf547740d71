"""A clock that a test advances by hand."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

#: Timers that one `advance` fires at their own time, and the jumps in which the rest of the time passes.
_MAX_TIMERS, _JUMPS = 2_000, 100


class ManualTimer:
    """A callback that waits for a `ManualClock`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    @property
    def waiting(self) -> bool:
        """Whether the callback was neither called nor cancelled."""
        return self._callback is not None

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        """Call the callback, unless it was called or cancelled before."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class ManualClock:
    """A `holdfast.clock.Clock` whose time passes only in `advance`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._start = self._now = start
        self._order = itertools.count()
        self._timers: list[tuple[datetime, int, ManualTimer]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - self._start).total_seconds()

    async def sleep(self, duration: timedelta) -> None:
        if duration <= timedelta(0):
            await asyncio.sleep(0)
            return
        elapsed = asyncio.Event()
        timer = self.call_later(duration, elapsed.set)
        try:
            await elapsed.wait()
        finally:
            timer.cancel()

    def call_later(self, delay: timedelta, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    @property
    def waiting(self) -> int:
        """The number of sleeps and callbacks that wait for this clock."""
        return sum(timer.waiting for _, _, timer in self._timers)

    async def advance(self, duration: timedelta) -> None:
        """Advance the time by `duration`. Fire the timers in order; `now()` is the time of each when it fires.

        Before the first timer and after each one, the other tasks run until they wait again. After 2,000 timers, such
        as those of loops that look every second for days, the rest of the time passes in 100 jumps.
        """
        end, fired = self._now + duration, 0
        await _let_others_run()
        while self._timers and self._timers[0][0] <= end and fired < _MAX_TIMERS:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            timer.fire()
            fired += 1
            await _let_others_run()
        if fired == _MAX_TIMERS:
            rest = (end - self._now) / _JUMPS
            for _ in range(_JUMPS):
                await self.jump(rest)
                await asyncio.sleep(0.001)  # real time, for the threads of a store
        self._now = end

    async def jump(self, duration: timedelta) -> None:
        """Advance the time by `duration` at once, as a suspended machine does.

        Every timer that is due fires once, in order, at the new time. Timers that are set meanwhile count from then, so
        a loop that looks every second looks once.
        """
        await _let_others_run()
        self._now += duration
        while self._timers and self._timers[0][0] <= self._now:
            heapq.heappop(self._timers)[2].fire()
            await _let_others_run()


async def _let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
