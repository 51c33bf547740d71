"""Callbacks that all wait equally long, at the cost of one timer."""

from collections import deque
from collections.abc import Callable
from datetime import timedelta

from holdfast.clock import Clock, Timer

#: The reply that asks for harmless tools is written if they are not done by then: quick ones share one write with it.
INTENT_DELAY = timedelta(milliseconds=2)

#: Two clocks' arithmetic may differ by so much.
_SLACK = 1e-6


class Intent:
    """A callback that waits for its time. One that is cancelled in time has cost next to nothing."""

    __slots__ = ("callback", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Intents:
    """Calls back after one and the same delay, for all runs of an executor.

    They come due in the order they were asked for, so that only the first needs a timer of the clock.
    """

    def __init__(self, clock: Clock, delay: timedelta) -> None:
        self._clock, self._delay = clock, delay
        self._seconds = delay.total_seconds()
        self._waiting: deque[Intent] = deque()
        self._timer: Timer | None = None

    def call_later(self, callback: Callable[[], None]) -> Intent:
        """Call `callback`, which raises nothing, once the delay has passed."""
        intent = Intent(self._clock.monotonic() + self._seconds, callback)
        self._waiting.append(intent)
        if self._timer is None:
            self._timer = self._clock.call_later(self._delay, self._ring)
        return intent

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._waiting and (self._waiting[0].callback is None or self._waiting[0].due <= now + _SLACK):
            callback = self._waiting.popleft().callback
            if callback is not None:
                callback()
        if self._waiting and self._timer is None:
            wait = timedelta(seconds=self._waiting[0].due - now)
            self._timer = self._clock.call_later(wait, self._ring)
