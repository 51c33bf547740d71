"""One clock timer for any number of deadlines."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import timedelta

from holdfast.clock import Clock, Timer

#: Number of cancelled deadlines that may stay in the heap before it is rebuilt without them.
_COMPACT_THRESHOLD = 100


class TimerQueue:
    """Calls a function at its deadline. All deadlines share one timer of the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer_ids = itertools.count()
        self._deadlines: list[tuple[float, int]] = []
        #: By timer id. A cancelled timer has no entry here, but stays in the heap.
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._timer: Timer | None = None
        self._armed_for = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None

    def call_at(self, deadline: float, callback: Callable[[], None]) -> int:
        """Call `callback` when the clock's monotonic time reaches `deadline`. Returns the timer's id."""
        self._bind_loop()
        timer_id = next(self._timer_ids)
        self._callbacks[timer_id] = callback
        heapq.heappush(self._deadlines, (deadline, timer_id))
        self._arm()
        return timer_id

    def cancel(self, timer_id: int) -> None:
        """Cancel a timer. An unknown id is ignored."""
        self._callbacks.pop(timer_id, None)
        if len(self._deadlines) > 2 * len(self._callbacks) + _COMPACT_THRESHOLD:
            self._deadlines = [each for each in self._deadlines if each[1] in self._callbacks]
            heapq.heapify(self._deadlines)

    def _bind_loop(self) -> None:
        """Drop all timers if the event loop changed: the runs of the old loop are gone."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._armed_for = loop, None, float("inf")
            self._deadlines.clear()
            self._callbacks.clear()

    def _arm(self) -> None:
        due = self._deadlines[0][0] if self._deadlines else float("inf")
        if due == self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = due
        if self._deadlines:
            wait = timedelta(seconds=max(0.0, due - self._clock.monotonic()))
            self._timer = self._clock.call_later(wait, self._fire_due)

    def _fire_due(self) -> None:
        self._timer, self._armed_for = None, float("inf")
        now = self._clock.monotonic()
        due: list[int] = []
        # A timer's delay is rounded, so it may fire up to 1 ms early.
        while self._deadlines and self._deadlines[0][0] <= now + 1e-3:
            due.append(heapq.heappop(self._deadlines)[1])
        for timer_id in due:
            callback = self._callbacks.pop(timer_id, None)
            if callback is not None:
                callback()
        self._arm()
