"""A store wrapper that redacts every write."""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim, WorkerIdentity
from holdfast.checkpoint.codec import Begin, RunMeta, decode, encode
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.redaction import Redact

#: The fields of a run's meta that hold free text. The others identify the run and are stored unchanged: stores find,
#: count and resume runs by them.
_REDACTED_FIELDS = ("prompt", "labels", "inputs", "content")


class RedactingStore:
    """Wraps another `CheckpointStore`. A resumed run reads its conversation redacted.

    The ids and names of the run, its parent, agent, caller, channel and guild are not redacted.
    """

    def __init__(self, store: CheckpointStore, redact: Redact) -> None:
        self._store, self._redact = store, redact
        self.durable = store.durable

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def register_worker(self, worker: WorkerIdentity) -> None:
        await self._store.register_worker(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        await self._store.deregister_worker(worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        entries = self._redact_entries(run.entries)
        # Redact before truncating: a truncated secret would no longer match the pattern.
        summary = decode(entries[0].body, Begin).meta.summary()
        redacted = msgspec.structs.replace(
            run, meta=encode(summary), progress=self._redact_body(run.progress), entries=entries
        )
        return await self._store.create(redacted, worker_id=worker_id)

    async def append(self, claim: Claim, write: Append) -> None:
        redacted = msgspec.structs.replace(
            write, entries=self._redact_entries(write.entries), progress=self._redact_body(write.progress)
        )
        await self._store.append(claim, redacted)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await self._store.load(run_id, after=after)

    async def get_record(self, run_id: str) -> RunRecord:
        return await self._store.get_record(run_id)

    async def release(self, claim: Claim, release: Release) -> None:
        redacted = msgspec.structs.replace(
            release,
            reason=self._redact(release.reason),
            entries=self._redact_entries(release.entries),
            progress=None if release.progress is None else self._redact_body(release.progress),
        )
        await self._store.release(claim, redacted)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self._store.remove(run_id, claim=claim)

    def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        return self._store.list_runs(filter)

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[RunStatus] = CLAIMABLE_STATUSES, steal: bool = False
    ) -> Claim:
        return await self._store.claim(run_id, worker_id, statuses=statuses, steal=steal)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        return await self._store.claim_next(worker_id, agents=agents, limit=limit)

    async def request_cancel(self, run_id: str) -> None:
        await self._store.request_cancel(run_id)

    async def pending_cancellations(self, worker_id: str) -> Sequence[str]:
        return await self._store.pending_cancellations(worker_id)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await self._store.wait_for_change(timeout)

    async def purge(self, *, limit: int = 100) -> int:
        return await self._store.purge(limit=limit)

    def stored_meta(self, meta: RunMeta) -> RunMeta:
        """Return `meta` as this store keeps it."""
        return msgspec.convert(self._redact_meta(msgspec.to_builtins(meta)), RunMeta)

    def _redact_entries(self, entries: Sequence[Entry]) -> list[Entry]:
        return [
            msgspec.structs.replace(
                entry,
                body=self._redact_begin(entry.body) if entry.kind is EntryKind.BEGIN else self._redact_body(entry.body),
            )
            for entry in entries
        ]

    def _redact_begin(self, body: bytes) -> bytes:
        begin = msgspec.json.decode(body)
        return msgspec.json.encode({**begin, "meta": self._redact_meta(begin["meta"])})

    def _redact_meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        redacted: Any = self._redact({name: meta[name] for name in _REDACTED_FIELDS if name in meta})
        return {**meta, **redacted}

    def _redact_body(self, body: bytes) -> bytes:
        return msgspec.json.encode(self._redact(msgspec.json.decode(body)))


def stored_meta(store: CheckpointStore, meta: RunMeta) -> RunMeta:
    """Return `meta` as `store` keeps it."""
    return store.stored_meta(meta) if isinstance(store, RedactingStore) else meta
