"""A clock that a test advances by hand."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

#: Times at which one `advance` fires every timer, and the jumps in which the rest of the time passes.
_MAX_TIMES, _JUMPS = 100, 20
#: Jumps to timers of their own, in addition.
_MAX_STOPS = 1_000


class ManualTimer:
    """A callback that waits for a `ManualClock`."""

    def __init__(self, callback: Callable[[], None], delay: timedelta) -> None:
        self._callback: Callable[[], None] | None = callback
        self.delay = delay

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
        timer = ManualTimer(callback, delay)
        heapq.heappush(self._timers, (self._now + delay, next(self._order), timer))
        return timer

    @property
    def waiting(self) -> int:
        """The number of sleeps and callbacks that wait for this clock."""
        return sum(timer.waiting for _, _, timer in self._timers)

    async def advance(self, duration: timedelta) -> None:
        """Advance the time by `duration`. Fire the timers in order; `now()` is the time of each when it fires.

        Before the first time and after each one, the other tasks run until they wait again. After 100 times at which
        timers fired, such as those of loops that look every second for days, the rest passes in 20 jumps. A timer that
        is longer than such a jump still fires at its own time.
        """
        end, times = self._now + duration, 0
        await _let_others_run()
        while self._timers and self._timers[0][0] <= end and times < _MAX_TIMES:
            self._now = max(self._now, self._timers[0][0])
            await self._fire_due()
            times += 1
        if times == _MAX_TIMES:
            await self._jump_to(end)
        self._now = end

    async def _fire_due(self) -> None:
        """Fire the timers that are due, in order. Then the other tasks run until they wait again."""
        due: list[ManualTimer] = []
        while self._timers and self._timers[0][0] <= self._now:
            due.append(heapq.heappop(self._timers)[2])
        for timer in due:
            timer.fire()
        await _let_others_run()

    async def _jump_to(self, end: datetime) -> None:
        step, stops = (end - self._now) / _JUMPS, 0
        while self._now < end:
            until = min(end, self._now + step)
            longer = [when for when, _, timer in self._timers if timer.waiting and timer.delay > step and when < until]
            if longer and stops < _MAX_STOPS:
                until, stops = max(self._now, min(longer)), stops + 1
            await self.jump(until - self._now)
            await asyncio.sleep(0.001)  # real time, for the threads of a store

    async def jump(self, duration: timedelta) -> None:
        """Advance the time by `duration` at once, as a suspended machine does.

        Every timer that is due fires once, in order, at the new time. Timers that are set meanwhile count from then, so
        a loop that looks every second looks once.
        """
        await _let_others_run()
        self._now += duration
        while self._timers and self._timers[0][0] <= self._now:
            await self._fire_due()


async def _let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
