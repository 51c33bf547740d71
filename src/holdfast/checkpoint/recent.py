"""The decoded journals of the conversations that this process executed last: their next turn need not read them."""

from collections import OrderedDict
from datetime import datetime
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Checkpoint, Progress, RunMeta, decode, make_state
from holdfast.checkpoint.record import RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.message import MessageCodec
from holdfast.core.state import RunState
from holdfast.core.turn import TurnRecord

#: How many conversations are kept, and how many bytes their journals have in all.
_MAX_CONVERSATIONS = 128
_MAX_BYTES = 32 * 2**20


class _Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a journal between two turns."""

    created_at: datetime
    next_seq: int
    size: int
    meta: RunMeta
    messages: list[Any]
    turns: list[TurnRecord]

    def is_current(self, record: RunRecord) -> bool:
        """Whether the stored journal has not changed: every write to it increases `next_seq`."""
        return (record.created_at, record.next_seq) == (self.created_at, self.next_seq)


class RecentConversations:
    """Keeps the journals of conversations that wait for their next message, the least recently used ones up to a limit.

    A turn of 2 KB in a conversation of 200 turns takes a third of the time that it takes with a load of the journal.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._journals: OrderedDict[str, _Journal] = OrderedDict()
        self._size = 0

    def put(self, meta: RunMeta, state: RunState, created_at: datetime, next_seq: int, size: int) -> None:
        """Keep a conversation whose turn has ended, as the store has it."""
        journal = _Journal(
            created_at=created_at,
            next_seq=next_seq,
            size=size,
            meta=meta,
            messages=list(state.history),
            turns=state.turns,
        )
        self._remove(meta.run_id)
        self._journals[meta.run_id] = journal
        self._size += size
        while len(self._journals) > _MAX_CONVERSATIONS or self._size > _MAX_BYTES:
            self._remove(next(iter(self._journals)))

    def _remove(self, run_id: str) -> None:
        journal = self._journals.pop(run_id, None)
        self._size -= journal.size if journal is not None else 0

    async def load(self, run_id: str) -> StoredRun:
        """Load a run, without the entries that are known. Raises as `CheckpointStore.load`."""
        journal = self._journals.get(run_id)
        if journal is not None:
            stored = await self._store.load(run_id, after=journal.next_seq - 1)
            if journal.is_current(stored.record):
                return stored
            self._remove(run_id)
        return await self._store.load(run_id)

    def read(self, stored: StoredRun, codec: MessageCodec) -> Checkpoint | None:
        """Return the checkpoint of a run that was loaded without its entries."""
        journal = self._journals.get(stored.record.run_id)
        if stored.entries or journal is None or not journal.is_current(stored.record):
            return None
        progress = decode(stored.record.progress, Progress)
        state = make_state(codec, progress, list(journal.messages), list(journal.turns))
        return Checkpoint(meta=journal.meta, state=state)
