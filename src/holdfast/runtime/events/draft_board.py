"""Drafts of the runs of this process: shown at once to watchers here, and through the store to those elsewhere."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

import msgspec

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import Clock
from holdfast.core.ports import Checkpointer, DraftWriter

log = logging.getLogger("holdfast.events")

#: How often the drafts that are watched from other processes are written, and how often to look which are.
PUBLISH_INTERVAL, REQUEST_CHECK_INTERVAL = timedelta(milliseconds=100), timedelta(seconds=1)
#: Characters of text, and of reasoning, that are written. A longer reply is seen whole when it is recorded.
MAX_PUBLISHED_LENGTH = 2**18


class LocalDraft:
    """The draft of one reply. A `DraftWriter`."""

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
        if self._text or self._reasoning:
            self._number = self._board.take_number()
            self._text, self._reasoning = [], []
            self._board.on_change(self)

    def close(self) -> None:
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

    def __init__(self, store: CheckpointStore, clock: Clock, on_draft: Callable[[LocalDraft], None] | None) -> None:
        """Make an empty board.

        Args:
            on_draft: gives a draft to the watchers in this process. `None`: they read it from the store too.
        """
        self._store, self._clock, self._on_draft = store, clock, on_draft
        #: By run id.
        self._drafts: dict[str, LocalDraft] = {}
        self._numbers = 0
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

    def open(self, run_id: str, checkpointer: Checkpointer) -> DraftWriter | None:
        """Begin the draft of a reply. The run has to be in the store."""
        if not isinstance(checkpointer, StoreCheckpointer) or checkpointer.claim is None:
            return None
        draft = self._drafts[run_id] = LocalDraft(self, checkpointer.claim, checkpointer.next_seq)
        return draft

    def get(self, run_id: str) -> Draft | None:
        draft = self._drafts.get(run_id)
        return None if draft is None else draft.snapshot()

    def take_number(self) -> int:
        self._numbers += 1
        return self._numbers

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
            self._changed.discard(run_id)

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
        """Find out, once in a while, which drafts are watched from other processes."""
        now = self._clock.monotonic()
        if self._checked_at is None or now - self._checked_at >= REQUEST_CHECK_INTERVAL.total_seconds():
            self._checked_at = now
            requested = frozenset(await self._store.requested_drafts(tuple(self._drafts)))
            self._changed |= requested - self._requested  # a new watcher needs what is there
            self._requested = requested


def _join(parts: list[str]) -> str:
    """Return the parts as one text. Halves of surrogate pairs, which cannot be encoded, are replaced."""
    text = "".join(parts)
    return text if text.isascii() else text.encode(errors="replace").decode()
