"""Those who will have to save what they intend, unless they are done with it soon: at the cost of one timer for all."""

from datetime import timedelta
from typing import Protocol

from holdfast.clock import Clock, Timer

#: The reply that asks for harmless tools is written if they are not done by then: quick ones share one write with it.
INTENT_DELAY = timedelta(milliseconds=2)

#: Two clocks' arithmetic may differ by so much.
_SLACK = 1e-6


class Intending(Protocol):
    """Somebody who is about to do something, and can save that."""

    def save_intent(self) -> None:
        """The delay is over. Raises nothing."""
        ...


class Intents:
    """Calls back after one and the same delay, for all runs of an executor.

    They come due in the order in which they began, so that only the first needs a timer of the clock.
    """

    def __init__(self, clock: Clock, delay: timedelta) -> None:
        self._clock, self._delay = clock, delay
        self._seconds = delay.total_seconds()
        #: Since when each waits; the first to begin comes first.
        self._since: dict[Intending, float] = {}
        self._timer: Timer | None = None

    def begin(self, intending: Intending) -> None:
        """Have its intent saved once the delay has passed. It waits for one at a time."""
        self._since[intending] = self._clock.monotonic()
        if self._timer is None:
            self._timer = self._clock.call_later(self._delay, self._ring)

    def end(self, intending: Intending) -> None:
        """It is done, or saves by itself. One that ends in time has cost next to nothing."""
        self._since.pop(intending, None)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._since:
            intending, since = next(iter(self._since.items()))
            wait = since + self._seconds - now
            if wait > _SLACK:
                self._timer = self._clock.call_later(timedelta(seconds=wait), self._ring)
                return
            del self._since[intending]
            intending.save_intent()
