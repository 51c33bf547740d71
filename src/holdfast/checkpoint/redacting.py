"""A store in which what a redaction removes is never written."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.codec import Begin, decode, encode
from holdfast.checkpoint.journal import Entry, EntryKind, Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run.redaction import Redact

#: What somebody wrote about a run. The rest of its meta says who it is: runs are found, counted and resumed by that, so
#: it is stored as it is.
_WRITTEN = ("prompt", "labels", "inputs")


class RedactingStore:
    """A `CheckpointStore` over another one. A resumed run finds its conversation as it was written: redacted.

    Ids and names are not redacted: of the run, its parent, agent, caller, channel and guild.
    """

    def __init__(self, store: CheckpointStore, redact: Redact) -> None:
        self._store, self._redact = store, redact
        self.durable = store.durable

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def enlist(self, worker: Worker) -> None:
        await self._store.enlist(worker)

    async def discharge(self, worker_id: str) -> None:
        await self._store.discharge(worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        entries = self._entries(run.entries)
        # What listings show is cut from what was redacted: half a secret is not known for one.
        head = decode(entries[0].body, Begin).meta.head()
        redacted = msgspec.structs.replace(run, meta=encode(head), progress=self._body(run.progress), entries=entries)
        return await self._store.create(redacted, worker_id=worker_id)

    async def append(self, claim: Claim, write: Write) -> None:
        redacted = msgspec.structs.replace(
            write, entries=self._entries(write.entries), progress=self._body(write.progress)
        )
        await self._store.append(claim, redacted)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await self._store.load(run_id, after=after)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        redacted = msgspec.structs.replace(
            ending,
            reason=self._redact(ending.reason),
            entries=self._entries(ending.entries),
            progress=None if ending.progress is None else self._body(ending.progress),
        )
        await self._store.settle(claim, redacted)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self._store.remove(run_id, claim=claim)

    def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        return self._store.records(wanted)

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        return await self._store.claim(run_id, worker_id, statuses=statuses, steal=steal)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        return await self._store.claim_next(worker_id, agents=agents, limit=limit)

    async def request_cancel(self, run_id: str) -> None:
        await self._store.request_cancel(run_id)

    async def cancels(self, worker_id: str) -> Sequence[str]:
        return await self._store.cancels(worker_id)

    async def changed(self, within: timedelta) -> bool:
        return await self._store.changed(within)

    async def purge(self, *, limit: int = 100) -> int:
        return await self._store.purge(limit=limit)

    def stored_prompt(self, prompt: str) -> str:
        """The prompt of a run as it can be read from this store."""
        return str(self._meta({"prompt": prompt})["prompt"])

    def _entries(self, entries: Sequence[Entry]) -> list[Entry]:
        return [
            msgspec.structs.replace(
                entry, body=self._begin(entry.body) if entry.kind is EntryKind.BEGIN else self._body(entry.body)
            )
            for entry in entries
        ]

    def _begin(self, body: bytes) -> bytes:
        begin = msgspec.json.decode(body)
        return msgspec.json.encode({**begin, "meta": self._meta(begin["meta"])})

    def _meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        written: Any = self._redact({name: meta[name] for name in _WRITTEN if name in meta})
        return {**meta, **written}

    def _body(self, body: bytes) -> bytes:
        return msgspec.json.encode(self._redact(msgspec.json.decode(body)))


def stored_prompt(store: CheckpointStore, prompt: str) -> str:
    """The prompt of a run as it can be read from `store`."""
    return store.stored_prompt(prompt) if isinstance(store, RedactingStore) else prompt
