"""One timer for any number of deadlines."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import timedelta

from holdfast.clock import Clock, Timer

#: So many deadlines that were called off are kept among the others, before these are looked through for them.
_COMPACT_THRESHOLD = 100


class TimerQueue:
    """Calls back when a deadline is reached. One timer of the clock serves them all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._timer_ids = itertools.count()
        self._deadlines: list[tuple[float, int]] = []
        #: By number, of those that were not called off.
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._timer: Timer | None = None
        self._armed_for = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None

    def call_at(self, deadline: float, callback: Callable[[], None]) -> int:
        """Call `callback` when the clock's monotonic time reaches `deadline`. Returns the number to call it off by."""
        self._bind_loop()
        number = next(self._timer_ids)
        self._callbacks[number] = callback
        heapq.heappush(self._deadlines, (deadline, number))
        self._arm()
        return number

    def cancel(self, timer_id: int) -> None:
        """Let go of a callback: it is not called any more."""
        self._callbacks.pop(timer_id, None)
        if len(self._deadlines) > 2 * len(self._callbacks) + _COMPACT_THRESHOLD:
            self._deadlines = [each for each in self._deadlines if each[1] in self._callbacks]
            heapq.heapify(self._deadlines)

    def _bind_loop(self) -> None:
        """On another event loop than before nothing is set: the timer went with the old one, and so did its runs."""
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
        # What comes back from a rounded timer a moment too early is due all the same.
        ripe: list[int] = []
        while self._deadlines and self._deadlines[0][0] <= now + 1e-3:
            ripe.append(heapq.heappop(self._deadlines)[1])
        for number in ripe:
            callback = self._callbacks.pop(number, None)
            if callback is not None:
                callback()
        self._arm()
