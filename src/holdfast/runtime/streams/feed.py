"""The feed of one run: reads it once for all its watchers in this process."""

import asyncio
import functools
import logging
from datetime import timedelta

from holdfast.checkpoint.codec import Draft
from holdfast.checkpoint.errors import RunNotFound, StoreClosed, StoreError
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import START, RunStore, get_record
from holdfast.clock import Clock
from holdfast.core.run.run_events import Event, ReplyAdded, StatusChanged
from holdfast.runtime.changes import POLL_INTERVAL
from holdfast.runtime.streams.draft_board import DraftReader, DraftView
from holdfast.runtime.streams.entry_events import (
    EventCursor,
    check_cursor,
    describe_present,
    get_incarnation,
    read_events,
)
from holdfast.runtime.streams.subscription import Batch, Subscription

log = logging.getLogger("holdfast.events")

#: Stores send no notification for a save, so a run of another process is polled: often while it makes progress.
_MIN_INTERVAL = timedelta(milliseconds=70)
#: The pause between two reads, however often the run is saved. For a run of another process: however often the store
#: changes.
_READ_INTERVAL, _REMOTE_READ_INTERVAL = timedelta(milliseconds=20), timedelta(milliseconds=50)

#: More than the number of events in any entry.
_END_OF_ENTRY = 10**9


class RunFeed:
    """Reads one run and gives what is new to the subscriptions. Runs as a task while there are any."""

    def __init__(self, run_id: str, store: RunStore, drafts: DraftReader, clock: Clock) -> None:
        self.run_id, self._store, self._drafts, self._clock = run_id, store, drafts, clock
        #: In the order in which they began.
        self.subscriptions: dict[Subscription, None] = {}
        self.task: asyncio.Task[None] | None = None
        #: Set when the run may have changed.
        self.wakeup = asyncio.Event()
        #: Set once the feed knows where the journal ends: a watcher reads the journal up to there by itself.
        self._is_ready = asyncio.Event()
        self._record: RunRecord | None = None
        #: The last journal entry that was read, and the last one that ends a draft: a reply, or what was rewritten.
        self.position = self._replied = START
        self._present: tuple[Event, ...] = ()
        self._draft = DraftView(run_id)
        self._reads: dict[EventCursor | None, asyncio.Task[Batch]] = {}
        #: The run is terminal, removed, or could not be read.
        self.is_over = False
        self._error: Exception | None = None
        #: Watchers, also those that still read the journal.
        self.users = 0

    # -- for watchers -------------------------------------------------------------------------------------------------

    async def catch_up(self, subscription: Subscription, after: EventCursor | None) -> list[Event]:
        """Return the events between the cursor and what the feed gives to the subscription, and the current draft.

        Raises:
            RunNotFound: there is no such run.
            RunDamaged: its journal cannot be read.
            InvalidCursor: the cursor is not one of this run.
        """
        await self._is_ready.wait()
        self._subscribe(subscription)
        # Together with the subscription: later deltas go to its queue.
        shown, reached = self._draft.show(), self.position
        events: list[Event] = []
        while True:
            batch = await self._read_shared(after)
            events += subscription.accept(batch)
            if batch.position >= reached:  # a shared read may have begun before the subscription
                return events + subscription.accept(shown)
            assert self._record is not None
            after = EventCursor(get_incarnation(self._record.created_at), batch.position, _END_OF_ENTRY)

    def _subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription] = None
        if self._error is not None:
            subscription.fail(self._error)
        elif self.is_over:
            subscription.end()

    async def _read_shared(self, after: EventCursor | None) -> Batch:
        """Read the journal after a cursor, once for all watchers that ask for it at the same time."""
        if after not in self._reads:
            task = self._reads[after] = asyncio.ensure_future(self._read_after(after))
            task.add_done_callback(functools.partial(self._forget_read, after))
        return await asyncio.shield(self._reads[after])

    def _forget_read(self, after: EventCursor | None, task: asyncio.Task[Batch]) -> None:
        del self._reads[after]
        if not task.cancelled():
            task.exception()  # retrieved: its watchers may be gone

    async def _read_after(self, after: EventCursor | None) -> Batch:
        # From the entry of the cursor on: it may hold further events.
        stored = await self._store.load(self.run_id, after=START if after is None else after.seq - 1)
        if after is not None:
            check_cursor(after, stored.record)
        return Batch(
            durable=tuple(read_events(stored.record, stored.entries, after)),
            position=stored.record.next_seq - 1,
            present=describe_present(stored.record),
        )

    def wake(self) -> None:
        """Read the run now: it may have changed."""
        self.wakeup.set()

    def on_draft(self, draft: Draft) -> None:
        """Give a draft of this process to the watchers at once, if they have all that came before it."""
        record = self._record
        if record is None or record.token != draft.token or self.position != draft.seq - 1:
            self.wake()
        else:
            self._broadcast(self._draft.update(draft, record, self._replied))

    # -- the task -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read the run until it is terminal or has no watchers."""
        try:
            await self._start()
            await self._follow()
        except Exception as exc:  # a store may raise anything: it belongs to the watchers
            self.fail(exc)
        else:
            for subscription in self.subscriptions:
                subscription.end()
        finally:
            self.is_over = True
            self._is_ready.set()

    def fail(self, error: Exception) -> None:
        """End the streams of all watchers with an error."""
        self._error = error
        for subscription in self.subscriptions:
            subscription.fail(error)

    async def _start(self) -> None:
        """Find out where to begin: at the end of the journal, or where the current draft began."""
        record = await get_record(self._store, self.run_id)
        draft = await self._drafts.read(record)
        self.position = record.next_seq - 1
        if draft is not None and draft.token == record.token:
            self.position = min(self.position, draft.seq - 1)
        self._record = record
        self._is_ready.set()

    async def _follow(self) -> None:
        """Read the run repeatedly until it is terminal or removed."""
        interval = _MIN_INTERVAL
        while True:
            self.wakeup.clear()
            try:
                found = await self._refresh()
            except RunNotFound:
                self._broadcast(Batch(present=(StatusChanged(run_id=self.run_id, status=RunStatus.REMOVED.value),)))
                return
            except StoreClosed:
                raise
            except StoreError as exc:
                log.info("run %s: its watchers wait for the store: %s", self.run_id, exc)
                found = False
            if self._record is not None and self._record.is_terminal:
                return
            interval = _MIN_INTERVAL if found else min(2 * interval, POLL_INTERVAL)
            # The saves of this process wake the feed.
            is_local = self._record is not None and self._drafts.is_local(self._record)
            await self._wait(POLL_INTERVAL if is_local else interval)
            await self._clock.sleep(_READ_INTERVAL if is_local else _REMOTE_READ_INTERVAL)

    async def _wait(self, timeout: timedelta) -> None:
        timer = self._clock.call_later(timeout, self.wakeup.set)
        try:
            await self.wakeup.wait()
        finally:
            timer.cancel()

    async def _refresh(self) -> bool:
        """Read what is new, and give it to the watchers. Return whether there was anything."""
        # Before the journal: a reply that is recorded in between ends the draft.
        draft = None if self._record is None else await self._drafts.read(self._record)
        stored = await self._store.load(self.run_id, after=self.position)
        if self._record is not None and stored.record.created_at != self._record.created_at:
            raise RunNotFound(self.run_id)  # another run has its id now
        return self._broadcast(self._make_batch(stored, draft))

    def _make_batch(self, stored: StoredRun, draft: Draft | None) -> Batch:
        record, self._record = stored.record, stored.record
        after = EventCursor(get_incarnation(record.created_at), self.position, _END_OF_ENTRY)
        durable = tuple(read_events(record, stored.entries, after))
        self.position = record.next_seq - 1
        replies = [seq for seq, event in durable if isinstance(event, ReplyAdded)]
        # A draft with the number of this entry is of the reply that was recorded with it.
        rewritten = max((entry.seq for entry in stored.entries if entry.kind is EntryKind.BEGIN), default=START)
        self._replied = max([self._replied, rewritten - 1, *replies])
        present = describe_present(record)
        present, self._present = (() if present == self._present else present), present
        size = sum(len(entry.body) for entry in stored.entries)
        journal = Batch(durable=durable, position=self.position, rewritten=rewritten, present=present, size=size)
        return journal.with_draft(self._draft.update(draft, record, self._replied))

    def _broadcast(self, batch: Batch) -> bool:
        """Give a batch to the watchers. Return whether it has any event."""
        found = bool(batch.durable or batch.present or batch.draft)
        if found:
            for subscription in self.subscriptions:
                subscription.push(batch)
        return found
