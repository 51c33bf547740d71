"""The event streams of one process: one feed for each run that is watched, one wait for changes of the store."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.errors import CheckpointError, StoreClosed
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.events import Event
from holdfast.core.ports import Checkpointer, DraftWriter
from holdfast.runtime.events.cursor import Cursor
from holdfast.runtime.events.draft_board import DraftBoard
from holdfast.runtime.events.draft_reader import DraftReader
from holdfast.runtime.events.feed import RunFeed
from holdfast.runtime.events.subscription import Subscription

log = logging.getLogger("holdfast.events")

#: How long to wait for a notification, and the pause after one: many may come at once.
_WAIT_TIMEOUT, _WAKE_INTERVAL = timedelta(seconds=1), timedelta(milliseconds=50)


class EventHub:
    """Streams the events of runs to any number of watchers. It is the `Watchers` port of the runs of this process."""

    def __init__(self, checkpoints: StoreCheckpoints, *, redacts: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make a hub.

        Args:
            redacts: the store redacts, so that watchers in this process get drafts from the store too.
        """
        self._checkpoints, self._store, self._clock = checkpoints, checkpoints.store, clock
        self._drafts = DraftBoard(self._store, clock, None if redacts else self._show_draft)
        self._feeds: dict[str, RunFeed] = {}
        self._changes: asyncio.Task[None] | None = None
        self._is_closed = True

    def open(self) -> None:
        """Accept watchers, also after `close`."""
        self._is_closed = False

    async def stream(self, run_id: str, after: str | None) -> AsyncGenerator[Event, None]:
        """Yield the events of a run after a cursor: durable ones, then the present, then live. Ends with the run.

        Raises:
            RunNotFound: there is no such run.
            RunDamaged: its journal cannot be read.
            InvalidCursor: the cursor is not one of this run.
            ReaderTooSlow: the watcher took its events too slowly.
            StoreClosed: the App was closed.
        """
        cursor = None if after is None else Cursor.parse(after)
        subscription = Subscription(run_id, after)
        feed = self._open_feed(run_id)
        try:
            events: Sequence[Event] | None = await feed.catch_up(subscription, cursor)
            while events is not None:
                for event in events:
                    subscription.cursor = event.cursor or subscription.cursor
                    yield event
                events = await subscription.take()
        finally:
            self._leave_feed(feed, subscription)

    async def close(self) -> None:
        """End all streams and stop writing drafts."""
        self._is_closed = True
        await self._drafts.close()
        tasks = [task for feed in self._feeds.values() if (task := feed.task) is not None]
        for feed in self._feeds.values():
            feed.fail(StoreClosed("the App was closed: watch again from another process"))
        if self._changes is not None:
            tasks.append(self._changes)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- for the runs of this process ---------------------------------------------------------------------------------

    def on_save(self, run_id: str) -> None:
        """Notify the watchers of a run that it was saved."""
        if (feed := self._feeds.get(run_id)) is not None:
            feed.wake()

    def open_draft(self, run_id: str, checkpointer: Checkpointer) -> DraftWriter | None:
        """Begin to show a reply under way."""
        return self._drafts.open(run_id, checkpointer)

    def _show_draft(self, run_id: str, draft: Draft) -> None:
        if (feed := self._feeds.get(run_id)) is not None:
            feed.on_draft(draft)

    # -- feeds --------------------------------------------------------------------------------------------------------

    def _open_feed(self, run_id: str) -> RunFeed:
        if self._is_closed:
            raise StoreClosed("the App was closed: nothing can be watched")
        feed = self._feeds.get(run_id)
        if feed is None or feed.is_over:
            feed = self._feeds[run_id] = self._make_feed(run_id)
            feed.task = asyncio.create_task(feed.run(), name=f"holdfast-feed-{run_id}")
        feed.users += 1
        if self._changes is None:
            self._changes = asyncio.create_task(self._follow_changes(), name="holdfast-feed-changes")
        return feed

    def _make_feed(self, run_id: str) -> RunFeed:
        reader = DraftReader(self._store, self._drafts, self._checkpoints.worker_id, self._clock)
        return RunFeed(run_id, self._store, reader, self._clock)

    def _leave_feed(self, feed: RunFeed, subscription: Subscription) -> None:
        feed.subscriptions.discard(subscription)
        feed.users -= 1
        if feed.users == 0:
            if feed.task is not None:
                feed.task.cancel()
            if self._feeds.get(feed.run_id) is feed:
                del self._feeds[feed.run_id]
        if not self._feeds and self._changes is not None:
            self._changes.cancel()
            self._changes = None

    async def _follow_changes(self) -> None:
        """Wake all feeds when the store may have changed: one wait for all watchers of the process."""
        while True:
            try:
                if await self._store.wait_for_change(_WAIT_TIMEOUT):
                    for feed in self._feeds.values():
                        feed.wake()
            except CheckpointError as exc:
                log.info("the watchers wait for the store: %s", exc)
                await self._clock.sleep(_WAIT_TIMEOUT)
            await self._clock.sleep(_WAKE_INTERVAL)
