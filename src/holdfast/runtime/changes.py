"""ChangeSignal: the one wait for changes of the store in a process. Without it each listener would poll."""

import asyncio
import logging
from datetime import timedelta
from typing import Self

from holdfast.checkpoint.errors import CheckpointError, StoreClosed
from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock

log = logging.getLogger("holdfast.events")

#: How long to wait for a change notification before polling the store. The death of a process and the end of a backoff
#: or a timer send none, and a notification may be lost.
POLL_INTERVAL = timedelta(seconds=1)


class ChangeSignal:
    """Sets events when the store may have changed. Waits for that in a task while there are any.

    The worker, the janitor, feeds, watches and waiting callers all listen to one. Belongs to one event loop at a time.
    """

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        #: In the order in which they were added.
        self._events: dict[asyncio.Event, None] = {}
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin without listeners: nothing of an event loop that has ended works in another one."""
        self._events, self._task = {}, None

    def listen(self) -> "ChangeListener":
        """Return a listener, which hears changes while it is used as a context manager."""
        return ChangeListener(self, self._clock)

    def add(self, event: asyncio.Event) -> None:
        """Set the event at each change from now on."""
        self._events[event] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="holdfast-changes")

    def discard(self, event: asyncio.Event) -> None:
        """Leave the event alone."""
        self._events.pop(event, None)
        if not self._events and self._task is not None:
            self._task.cancel()
            self._task = None

    def notify(self) -> None:
        """Set all events: what the listeners wait for may have changed."""
        for event in self._events:
            event.set()

    async def close(self) -> None:
        """Stop waiting, and wake all listeners."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self.notify()

    async def _run(self) -> None:
        try:
            while True:
                try:
                    if await self._store.wait_for_change(POLL_INTERVAL):
                        self.notify()
                        await asyncio.sleep(0)  # the next notification may already be there
                except StoreClosed:
                    return
                except CheckpointError as exc:
                    log.info("could not wait for a change in the store, will poll: %s", exc)
                    await self._clock.sleep(POLL_INTERVAL)
        finally:
            self.notify()  # each listener finds out by itself that the store is closed


class ChangeListener:
    """Waits for changes of the store. A change between two waits ends the second one at once."""

    def __init__(self, signal: ChangeSignal, clock: Clock) -> None:
        self._signal, self._clock = signal, clock
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._signal.add(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        self._signal.discard(self._event)

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._event.set()

    async def wait(self, timeout: timedelta = POLL_INTERVAL) -> None:
        """Wait until the store may have changed since the last wait. Not longer than `timeout` and `POLL_INTERVAL`."""
        timer = self._clock.call_later(min(timeout, POLL_INTERVAL), self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()
