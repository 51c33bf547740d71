"""Drafts: replies in progress, of this process and of others, as deltas and retractions."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

import msgspec

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.codec import Draft, decode
from holdfast.checkpoint.errors import CheckpointError, RecordDecodeError
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.clock import Clock
from holdfast.core.ports import Checkpointer
from holdfast.core.run.run_events import DraftRetracted, Event, ReasoningDelta, TextDelta
from holdfast.runtime.streams.subscription import Batch


class DraftView:
    """Turns successive states of a draft into deltas and retractions.

    A draft is void when its reply is recorded, when another worker owns the run, and when the run is not running.
    All but the first are shown as a retraction.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._known: Draft | None = None

    def show(self) -> Batch:
        """Return the whole draft, for a new watcher."""
        known = self._known
        return Batch() if known is None else self._make_batch(self._make_deltas(known.reasoning, known.text), known)

    def update(self, draft: Draft | None, record: RunRecord, replied: int) -> Batch:
        """Return what brings the watchers from the draft that they know to `draft`.

        Args:
            draft: the current one. `None`: there is none now.
            replied: the journal entry of the last recorded reply.
        """
        known = self._known
        if known is not None and known.seq <= replied:
            known = self._known = None
        is_running = record.status is RunStatus.RUNNING and record.owner_alive
        if draft is not None and is_running and draft.token == record.token and draft.seq > replied:
            self._known = draft
            return self._make_batch(self._compare(known, draft), draft)
        if known is not None and (not is_running or known.token != record.token):
            self._known = None
            return self._make_batch(self._retract(known), known)
        return Batch()

    def _compare(self, known: Draft | None, draft: Draft) -> Sequence[Event]:
        if known is None:
            return self._make_deltas(draft.reasoning, draft.text)
        is_same = (known.token, known.number) == (draft.token, draft.number)
        # Redaction may change what was shown before.
        if is_same and draft.text.startswith(known.text) and draft.reasoning.startswith(known.reasoning):
            return self._make_deltas(draft.reasoning[len(known.reasoning) :], draft.text[len(known.text) :])
        return [*self._retract(known), *self._make_deltas(draft.reasoning, draft.text)]

    def _make_deltas(self, reasoning: str, text: str) -> list[Event]:
        deltas: list[Event] = []
        if reasoning:
            deltas.append(ReasoningDelta(run_id=self._run_id, text=reasoning))
        if text:
            deltas.append(TextDelta(run_id=self._run_id, text=text))
        return deltas

    def _retract(self, known: Draft) -> list[Event]:
        return [DraftRetracted(run_id=self._run_id)] if known.text or known.reasoning else []

    def _make_batch(self, events: Sequence[Event], draft: Draft) -> Batch:
        size = sum(len(event.text) for event in events if isinstance(event, TextDelta | ReasoningDelta))
        return Batch(draft=tuple(events), draft_seq=draft.seq, size=size)


log = logging.getLogger("holdfast.events")

#: How often the drafts that are watched from other processes are written, and how often to look which are.
PUBLISH_INTERVAL, REQUEST_CHECK_INTERVAL = timedelta(milliseconds=100), timedelta(seconds=1)
#: Characters of text, and of reasoning, that are written. A longer reply is seen whole when it is recorded.
MAX_PUBLISHED_LENGTH = 2**18


class LocalDraft:
    """The draft of one reply."""

    def __init__(self, board: "DraftBoard", claim: Claim, seq: int) -> None:
        self._board, self.claim, self._seq = board, claim, seq
        self._number = board.take_number()
        self._text: list[str] = []
        self._reasoning: list[str] = []

    def add(self, *, text: str = "", reasoning: str = "") -> None:
        if text:
            self._text.append(text)
        if reasoning:
            self._reasoning.append(reasoning)
        self._board.on_change(self)

    def restart(self) -> None:
        """Withdraw what was added: the model call is repeated."""
        if self._text or self._reasoning:
            self._number = self._board.take_number()
            self._text, self._reasoning = [], []
            self._board.on_change(self)

    def close(self) -> None:
        """End the draft: the reply is complete, or the attempt has ended."""
        self._board.on_close(self)

    def snapshot(self, max_length: int | None = None) -> Draft:
        """Return the draft as it is now, cut off after `max_length` characters."""
        return Draft(
            token=self.claim.token,
            seq=self._seq,
            number=self._number,
            text=_join(self._text)[:max_length],
            reasoning=_join(self._reasoning)[:max_length],
        )


class DraftBoard:
    """The drafts of all runs of this process. Writes them to the store while another process asks for them."""

    def __init__(self, store: RunStore, clock: Clock, on_draft: Callable[[LocalDraft], None] | None) -> None:
        """Make an empty board.

        Args:
            on_draft: gives a draft to the watchers in this process. `None`: they read it from the store too.
        """
        self._store, self._clock, self._on_draft = store, clock, on_draft
        #: By run id.
        self._drafts: dict[str, LocalDraft] = {}
        self._numbers = itertools.count()
        #: Drafts that have changed since they were written.
        self._changed: set[str] = set()
        #: Drafts that are in the store.
        self._published: dict[str, Claim] = {}
        #: The runs whose drafts other processes have asked for, and when that was last looked up.
        self._requested: frozenset[str] = frozenset()
        self._checked_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def shows_at_once(self) -> bool:
        """Whether watchers in this process get drafts without the store."""
        return self._on_draft is not None

    def open(self, run_id: str, checkpointer: Checkpointer) -> LocalDraft | None:
        """Begin the draft of a reply. The run has to be in the store."""
        if not isinstance(checkpointer, StoreCheckpointer) or checkpointer.claim is None:
            return None
        draft = self._drafts[run_id] = LocalDraft(self, checkpointer.claim, checkpointer.next_seq)
        return draft

    def get(self, run_id: str) -> Draft | None:
        draft = self._drafts.get(run_id)
        return None if draft is None else draft.snapshot()

    def take_number(self) -> int:
        return next(self._numbers)

    def on_change(self, draft: LocalDraft) -> None:
        """Show a draft that has changed, and write it soon."""
        run_id = draft.claim.run_id
        if self._drafts.get(run_id) is not draft:
            return
        if self._on_draft is not None:
            self._on_draft(draft)
        self._changed.add(run_id)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._publish(), name="holdfast-drafts")

    def on_close(self, draft: LocalDraft) -> None:
        """Remove a draft. Watchers keep it until the reply is recorded, or the run is interrupted."""
        run_id = draft.claim.run_id
        if self._drafts.get(run_id) is draft:
            del self._drafts[run_id]

    async def close(self) -> None:
        """Stop writing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Write the drafts that have changed, at a bounded rate, until no run has one."""
        try:
            while self._drafts or self._published:
                await self._clock.sleep(PUBLISH_INTERVAL)
                try:
                    await self._write_drafts()
                except CheckpointError as exc:
                    log.info("drafts could not be written: %s", exc)
                    await self._clock.sleep(REQUEST_CHECK_INTERVAL)
        finally:
            self._task = None

    async def _write_drafts(self) -> None:
        if self._drafts:
            await self._check_requests()
        changed, self._changed = self._changed & self._requested, set()
        for run_id in changed:
            if (draft := self._drafts.get(run_id)) is not None:
                self._published[run_id] = draft.claim
                body = msgspec.json.encode(draft.snapshot(MAX_PUBLISHED_LENGTH))
                await self._store.put_draft(draft.claim, body)
        for run_id in [run_id for run_id in self._published if run_id not in self._drafts]:
            await self._store.put_draft(self._published.pop(run_id), None)

    async def _check_requests(self) -> None:
        """Find out, at intervals, which drafts are watched from other processes."""
        now = self._clock.monotonic()
        if self._checked_at is None or now - self._checked_at >= REQUEST_CHECK_INTERVAL.total_seconds():
            self._checked_at = now
            worker_ids = {draft.claim.worker_id for draft in self._drafts.values()}
            pending = [await self._store.pending(worker_id) for worker_id in worker_ids]
            requested = frozenset(run_id for each in pending for run_id in each.drafts)
            self._changed |= requested - self._requested  # a new watcher needs what is there
            self._requested = requested


def _join(parts: list[str]) -> str:
    """Return the parts as one text. Halves of surrogate pairs, which cannot be encoded, are replaced."""
    text = "".join(parts)
    return text if text.isascii() else text.encode(errors="replace").decode()


#: How long a request for drafts is valid, and how often it is renewed.
_REQUEST_TTL, _RENEW_INTERVAL = timedelta(seconds=30), timedelta(seconds=10)


class DraftReader:
    """Reads the drafts of one run, and asks its worker for them."""

    def __init__(self, store: RunStore, board: DraftBoard, worker_id: str, clock: Clock) -> None:
        self._store, self._board, self._worker_id, self._clock = store, board, worker_id, clock
        self._requested_at: float | None = None

    def is_local(self, record: RunRecord) -> bool:
        """Whether this process executes the run."""
        return record.status is RunStatus.RUNNING and record.owner == self._worker_id

    async def read(self, record: RunRecord) -> Draft | None:
        """Return the current draft of a running run."""
        if not (record.status is RunStatus.RUNNING and record.owner_alive):
            return None
        if self._board.shows_at_once and self.is_local(record):
            return self._board.get(record.run_id)
        now, keep_for = self._clock.monotonic(), timedelta(0)
        if self._requested_at is None or now - self._requested_at >= _RENEW_INTERVAL.total_seconds():
            keep_for, self._requested_at = _REQUEST_TTL, now
        body = await self._store.read_draft(record.run_id, keep_for=keep_for)
        try:
            return None if body is None else decode(body, Draft)
        except RecordDecodeError:  # written by a newer holdfast: the reply will be seen when it is recorded
            return None
