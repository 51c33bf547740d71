"""One wait for changes of the store, for all watchers of a process."""

import asyncio
import logging
from datetime import timedelta

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock

log = logging.getLogger("holdfast.events")

#: How long to wait for a notification, and the pause after one: many may come at once.
_WAIT_TIMEOUT, _NOTIFY_INTERVAL = timedelta(seconds=1), timedelta(milliseconds=50)


class ChangeSignal:
    """Sets events when the store may have changed. Waits for that in a task while there are any."""

    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._events: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, event: asyncio.Event) -> None:
        """Set the event at each change from now on."""
        self._events.add(event)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="holdfast-changes")

    def discard(self, event: asyncio.Event) -> None:
        """Leave the event alone."""
        self._events.discard(event)
        if not self._events and self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Stop waiting."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                if await self._store.wait_for_change(_WAIT_TIMEOUT):
                    for event in self._events:
                        event.set()
            except CheckpointError as exc:
                log.info("the watchers wait for the store: %s", exc)
                await self._clock.sleep(_WAIT_TIMEOUT)
            await self._clock.sleep(_NOTIFY_INTERVAL)
