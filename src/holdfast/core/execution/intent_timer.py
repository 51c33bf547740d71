"""One timer for the delayed intent saves of all runs of an executor."""

from datetime import timedelta
from typing import Protocol

from holdfast.clock import Clock, Timer

#: A reply that asks for pure or idempotent tools is saved if they take longer than this. Faster ones share one write
#: with it.
INTENT_DELAY = timedelta(milliseconds=2)

#: Adding and subtracting clock readings loses less than this many seconds.
_ROUNDING_ERROR_S = 1e-6


class PendingIntent(Protocol):
    """A reply whose calls are being made and that is not saved yet."""

    def save_intent(self) -> None:
        """Start to save it: the delay has passed. Raises nothing."""
        ...


class IntentTimer:
    """Saves intents that stay pending for `INTENT_DELAY`.

    The delay is the same for all, so they come due in the order in which they were scheduled and only the first needs
    a timer of the clock. A timer per step, which is nearly always cancelled, costs 10% of the instructions of a step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: By intent: when it comes due. Ordered, the first one first.
        self._due_at: dict[PendingIntent, float] = {}
        self._timer: Timer | None = None

    def schedule(self, intent: PendingIntent) -> None:
        """Save the intent after the delay, unless it is cancelled before."""
        self._due_at[intent] = self._clock.monotonic() + INTENT_DELAY.total_seconds()
        if self._timer is None:
            self._timer = self._clock.call_later(INTENT_DELAY, self._on_timer)

    def cancel(self, intent: PendingIntent) -> None:
        """Do not save the intent. The timer keeps running for those that are scheduled later."""
        self._due_at.pop(intent, None)

    def clear(self) -> None:
        """Cancel all intents and the timer."""
        self._due_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._due_at:
            intent, due_at = next(iter(self._due_at.items()))
            if due_at - now > _ROUNDING_ERROR_S:
                self._timer = self._clock.call_later(timedelta(seconds=due_at - now), self._on_timer)
                return
            del self._due_at[intent]
            intent.save_intent()
