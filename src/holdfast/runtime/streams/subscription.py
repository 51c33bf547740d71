"""One watcher of one run: what it has been given, and what waits to be taken."""

import asyncio
from collections import deque
from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.store import START
from holdfast.core.run.run_events import DraftRetracted, Event, ReaderTooSlow, ReasoningDelta, ReplyAdded, TextDelta
from holdfast.runtime.streams.entry_events import NumberedEvent

#: A watcher with more bytes than this waiting behind its next batch is disconnected. Watchers share the events, so this
#: bounds what a slow one keeps alive. One batch may be larger: a single tool result can be.
MAX_WAITING_BYTES = 8 * 2**20
MAX_WAITING_BATCHES = 1_000


class Batch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one read of a run has found."""

    durable: Sequence[NumberedEvent] = ()
    #: The last journal entry that was read.
    position: int = START
    #: The first entry of a history that was rewritten. The replies of older drafts may be gone.
    rewritten: int = START
    #: Events that describe the current state.
    present: Sequence[Event] = ()
    #: Deltas and retractions, and the journal entry that was next when the model was asked.
    draft: Sequence[Event] = ()
    draft_seq: int = START
    #: Roughly how many bytes the events hold.
    size: int = 0

    def with_draft(self, drafts: "Batch") -> "Batch":
        """Return this batch with the deltas of another one."""
        return msgspec.structs.replace(
            self, draft=drafts.draft, draft_seq=drafts.draft_seq, size=self.size + drafts.size
        )


class Subscription:
    """A bounded queue of batches, and the filter by which each durable event arrives once."""

    def __init__(self, run_id: str, cursor: str | None) -> None:
        self.run_id = run_id
        #: The cursor of the last durable event that the watcher has.
        self.cursor = cursor
        #: The last journal entry, and the last reply, that the watcher has.
        self.position = self._replied = START
        self._batches: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._wakeup = asyncio.Event()
        self._error: BaseException | None = None
        self._is_ended = False
        #: The events that describe the current state, by type, as the watcher has them.
        self._present: dict[type[Event], Event] = {}
        #: Whether the watcher has text of a reply that it does not have, and the `draft_seq` of the last such text.
        self._has_draft, self._draft_seq = False, START

    # -- for the feed -------------------------------------------------------------------------------------------------

    def push(self, batch: Batch) -> None:
        """Add a batch. If too much waits, disconnect the watcher."""
        if self._is_ended or self._error is not None:
            return
        if self._batches and (merged := _merge_deltas(self._batches[-1], batch)) is not None:
            self._batches[-1] = merged
        else:
            self._batches.append(batch)
        self._waiting_bytes += batch.size
        is_large = self._waiting_bytes - self._batches[0].size > MAX_WAITING_BYTES
        if is_large or len(self._batches) > MAX_WAITING_BATCHES:
            self._batches.clear()
            self._error = ReaderTooSlow(self.run_id, self.cursor)
        self._wakeup.set()

    def end(self) -> None:
        """End the stream after the batches that wait."""
        self._is_ended = True
        self._wakeup.set()

    def fail(self, error: BaseException) -> None:
        """End the stream with an error after the batches that wait."""
        self._error = self._error or error
        self._wakeup.set()

    # -- for the watcher ----------------------------------------------------------------------------------------------

    async def take(self) -> Sequence[Event] | None:
        """Wait for the next batch and return what is new in it; `None` at the end of the stream.

        Raises:
            ReaderTooSlow: the watcher was disconnected.
        """
        while not self._batches:
            if isinstance(self._error, ReaderTooSlow):
                raise ReaderTooSlow(self.run_id, self.cursor)  # the watcher may have taken more since
            if self._error is not None:
                raise self._error
            if self._is_ended:
                return None
            self._wakeup.clear()
            await self._wakeup.wait()
        batch = self._batches.popleft()
        self._waiting_bytes -= batch.size
        return self.accept(batch)

    def accept(self, batch: Batch) -> list[Event]:
        """Return the events of the batch that are new to the watcher."""
        events: list[Event] = []
        if self._has_draft and self._draft_seq < batch.rewritten:
            events.append(DraftRetracted(run_id=self.run_id))
            self._has_draft = False
        for seq, event in batch.durable:
            if seq > self.position:
                events.append(event)
                if isinstance(event, ReplyAdded):
                    self._replied, self._has_draft = seq, False
        self.position = max(self.position, batch.position)
        for event in batch.present:
            if self._present.get(type(event)) != event:
                self._present[type(event)] = event
                events.append(event)
        if batch.draft_seq > self._replied:  # else the watcher has the whole reply
            events += [event for event in batch.draft if self._is_new_draft(event)]
            self._draft_seq = max(self._draft_seq, batch.draft_seq)
        return events

    def _is_new_draft(self, event: Event) -> bool:
        had_draft, self._has_draft = self._has_draft, not isinstance(event, DraftRetracted)
        return self._has_draft or had_draft


def _merge_deltas(first: Batch, second: Batch) -> Batch | None:
    """Return two single deltas of one draft as one: what waits does not grow with the number of deltas."""
    if len(first.draft) != 1 or len(second.draft) != 1 or first.draft_seq != second.draft_seq:
        return None
    before, after = first.draft[0], second.draft[0]
    if first.durable or first.present or second.durable or second.present or type(before) is not type(after):
        return None
    if not isinstance(before, TextDelta | ReasoningDelta) or not isinstance(after, TextDelta | ReasoningDelta):
        return None
    delta = msgspec.structs.replace(before, text=before.text + after.text)
    return Batch(draft=(delta,), draft_seq=first.draft_seq, size=first.size + second.size)
