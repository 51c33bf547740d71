"""One timer for any number of deadlines."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import timedelta

from holdfast.clock import Clock, Timer


class Alarm:
    """Calls back when a deadline is reached. One timer of the clock serves them all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._order = itertools.count()
        self._deadlines: list[tuple[float, int, Callable[[], None]]] = []
        self._timer: Timer | None = None
        self._due = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None

    def at(self, deadline: float, callback: Callable[[], None]) -> None:
        """Call `callback` when the clock's monotonic time reaches `deadline`. It finds out whether it still matters."""
        self._settle_in()
        heapq.heappush(self._deadlines, (deadline, next(self._order), callback))
        self._arm()

    def _settle_in(self) -> None:
        """On another event loop than before nothing is set: the timer went with the old one, and so did its runs."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._due = loop, None, float("inf")
            self._deadlines.clear()

    def _arm(self) -> None:
        due = self._deadlines[0][0] if self._deadlines else float("inf")
        if due == self._due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if self._deadlines:
            wait = timedelta(seconds=max(0.0, due - self._clock.monotonic()))
            self._timer = self._clock.call_later(wait, self._ring)

    def _ring(self) -> None:
        self._timer, self._due = None, float("inf")
        now = self._clock.monotonic()
        # What comes back from a rounded timer a moment too early is due all the same.
        ripe: list[Callable[[], None]] = []
        while self._deadlines and self._deadlines[0][0] <= now + 1e-3:
            ripe.append(heapq.heappop(self._deadlines)[2])
        for callback in ripe:
            callback()
        self._arm()
