"""The event streams of one process: one feed for each run that is watched, one wait for changes of the store."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Unpack

from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.observer import AttemptControl, AttemptEnding, DraftEnded, ObservedEvent, Saved
from holdfast.core.ports import Checkpointer
from holdfast.core.run.run_events import DraftRetracted, Event, ReasoningDelta, StatusChanged, TextDelta
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.reading.run_views import RunQuery, make_filter
from holdfast.runtime.streams.draft_board import DraftBoard, DraftReader, LocalDraft
from holdfast.runtime.streams.entry_events import EventCursor
from holdfast.runtime.streams.feed import RunFeed
from holdfast.runtime.streams.subscription import Subscription
from holdfast.runtime.streams.watch import watch_statuses


class EventHub:
    """Streams the events of runs to any number of watchers."""

    def __init__(
        self,
        checkpoints: StoreCheckpoints,
        changes: ChangeSignal,
        *,
        redacts: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a hub.

        Args:
            redacts: the store redacts, so that watchers in this process get drafts from the store too.
        """
        self._checkpoints, self._store, self._clock = checkpoints, checkpoints.store, clock
        self._drafts = DraftBoard(self._store, clock, None if redacts else self._show_draft)
        self._feeds: dict[str, RunFeed] = {}
        self._changes = changes
        self._is_closed = True
        #: Shows the runs that this process executes, as soon as they are saved.
        self.live: LiveRuns = LiveRuns(self)

    def open(self) -> None:
        """Accept watchers, also after `close`."""
        self._is_closed = False

    async def stream(self, run_id: str, after: str | None) -> AsyncGenerator[Event, None]:
        """Yield the events of a run after a cursor: durable ones, then the current state, then live. Ends with the run.

        Raises:
            RunNotFound: there is no such run.
            RunDamaged: its journal cannot be read.
            InvalidCursor: the cursor is not one of this run.
            ReaderTooSlow: the watcher took its events too slowly.
            StoreClosed: the App was closed.
        """
        cursor = None if after is None else EventCursor.parse(after)
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

    async def watch(self, **query: Unpack[RunQuery]) -> AsyncGenerator[StatusChanged, None]:
        """Yield the status of each run that matches and is not terminal, then each change of such a run's status.

        Raises:
            DefinitionError: an argument has a wrong type or value.
            StoreClosed: the App was closed.
        """
        run_filter, wanted = make_filter(**query)
        events = watch_statuses(self._store, self._changes, self._clock, run_filter, wanted)
        async with aclosing(events):
            async for event in events:
                yield event

    async def close(self) -> None:
        """End all streams and stop writing drafts."""
        self._is_closed = True
        await self._drafts.close()
        tasks = [task for feed in self._feeds.values() if (task := feed.task) is not None]
        for feed in self._feeds.values():
            feed.fail(StoreClosed("the App was closed: watch again from another process"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- for the runs of this process ---------------------------------------------------------------------------------

    def wake(self, run_id: str) -> None:
        """Read a run now for its watchers: it was saved."""
        if (feed := self._feeds.get(run_id)) is not None:
            feed.wake()

    def open_draft(self, run_id: str, checkpointer: Checkpointer) -> LocalDraft | None:
        """Begin to show a reply in progress; `None` if no draft of this run can be shown."""
        return self._drafts.open(run_id, checkpointer)

    def _show_draft(self, draft: LocalDraft) -> None:
        if (feed := self._feeds.get(draft.claim.run_id)) is not None:
            feed.on_draft(draft.snapshot())

    # -- feeds --------------------------------------------------------------------------------------------------------

    def _open_feed(self, run_id: str) -> RunFeed:
        if self._is_closed:
            raise StoreClosed("the App was closed: nothing can be watched")
        feed = self._feeds.get(run_id)
        if feed is None or feed.is_over:
            feed = self._feeds[run_id] = self._make_feed(run_id)
            feed.task = asyncio.create_task(feed.run(), name=f"holdfast-feed-{run_id}")
        feed.users += 1
        self._changes.add(feed.wakeup)
        return feed

    def _make_feed(self, run_id: str) -> RunFeed:
        reader = DraftReader(self._store, self._drafts, self._checkpoints.worker_id, self._clock)
        return RunFeed(run_id, self._store, reader, self._clock)

    def _leave_feed(self, feed: RunFeed, subscription: Subscription) -> None:
        feed.subscriptions.pop(subscription, None)
        feed.users -= 1
        if feed.users == 0:
            self._changes.discard(feed.wakeup)
            if feed.task is not None:
                feed.task.cancel()
            if self._feeds.get(feed.run_id) is feed:
                del self._feeds[feed.run_id]


class LiveRuns:
    """Shows the attempts of this process to the watchers of a hub. An `ObserverFactory`."""

    def __init__(self, hub: EventHub) -> None:
        self._hub = hub

    def begin(self, attempt: AttemptControl) -> "LiveAttempt | None":
        return None if attempt.checkpointer is None else LiveAttempt(attempt, self._hub)


class LiveAttempt:
    """Wakes the feed of one run when it was saved, and keeps the draft of its reply."""

    __slots__ = ("_attempt", "_draft", "_hub", "_run_id")

    kinds: frozenset[type] = frozenset({Saved, TextDelta, ReasoningDelta, DraftRetracted, DraftEnded, AttemptEnding})

    def __init__(self, attempt: AttemptControl, hub: EventHub) -> None:
        self._attempt, self._hub, self._run_id = attempt, hub, attempt.info.run_id
        #: The draft of the reply in progress, once the model has streamed a part of it.
        self._draft: LocalDraft | None = None

    def observe(self, event: ObservedEvent) -> None:
        match event:
            case Saved():
                self._hub.wake(self._run_id)
            case TextDelta() if (draft := self._open_draft()) is not None:
                draft.add(text=event.text)
            case ReasoningDelta() if (draft := self._open_draft()) is not None:
                draft.add(reasoning=event.text)
            case DraftRetracted() if self._draft is not None:
                self._draft.restart()
            case DraftEnded() | AttemptEnding() if self._draft is not None:
                self._draft.close()
                self._draft = None

    def _open_draft(self) -> LocalDraft | None:
        checkpointer = self._attempt.checkpointer
        if self._draft is None and checkpointer is not None:
            self._draft = self._hub.open_draft(self._run_id, checkpointer)
        return self._draft
