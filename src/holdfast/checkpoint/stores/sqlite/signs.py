"""The signs by which a store's waiters learn that something may have changed."""

import asyncio
import contextlib
from datetime import timedelta

from holdfast.clock import Clock


class Signs:
    """Collects signals of this process and of others, and wakes who waits in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._newest = self._answered = 0
        self._event = asyncio.Event()

    def begin(self, number: int) -> None:
        """What was signalled so far is old."""
        self._newest = self._answered = number

    def signal(self, number: int) -> None:
        """Something changed. From any thread; a number that is not new says nothing."""
        if number > self._newest:
            self._newest = number
            self.wake()

    def wake(self) -> None:
        """Let everybody look. From any thread."""
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._set)

    async def changed(self, within: timedelta) -> bool:
        """Whether there was a signal since the last answer, or comes one in time."""
        if self._answered < self._newest:
            self._answered = self._newest
            return True
        event = self._event
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(within))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._answered = self._newest
        return event.is_set()

    def _set(self) -> None:
        self._event.set()
        self._event = asyncio.Event()
