"""Those who will have to save what they intend, unless they are done with it soon: at the cost of one timer for all."""

from datetime import timedelta
from typing import Protocol

from holdfast.clock import Clock, Timer

#: The reply that asks for harmless tools is written if they are not done by then: quick ones share one write with it.
INTENT_DELAY = timedelta(milliseconds=2)

#: Two clocks' arithmetic may differ by so much.
_TIMER_TOLERANCE = 1e-6


class PendingIntent(Protocol):
    """Somebody who is about to do something, and can save that."""

    def save_intent(self) -> None:
        """The delay is over. Raises nothing."""
        ...


class IntentTimer:
    """Calls back after one and the same delay, for all runs of an executor.

    They come due in the order in which they began, so that only the first needs a timer of the clock.
    """

    def __init__(self, clock: Clock, delay: timedelta) -> None:
        self._clock, self._delay = clock, delay
        self._delay_seconds = delay.total_seconds()
        #: Since when each waits; the first to begin comes first.
        self._scheduled_at: dict[PendingIntent, float] = {}
        self._timer: Timer | None = None

    def schedule(self, intent: PendingIntent) -> None:
        """Have its intent saved once the delay has passed. It waits for one at a time."""
        self._scheduled_at[intent] = self._clock.monotonic()
        if self._timer is None:
            self._timer = self._clock.call_later(self._delay, self._on_timer)

    def cancel(self, intent: PendingIntent) -> None:
        """It is done, or saves by itself. One that ends in time has cost next to nothing."""
        self._scheduled_at.pop(intent, None)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._scheduled_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._scheduled_at:
            intending, since = next(iter(self._scheduled_at.items()))
            wait = since + self._delay_seconds - now
            if wait > _TIMER_TOLERANCE:
                self._timer = self._clock.call_later(timedelta(seconds=wait), self._on_timer)
                return
            del self._scheduled_at[intending]
            intending.save_intent()
