"""A store that several users in one process open and close independently."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta

from holdfast.checkpoint.claim import Claim, WorkerIdentity
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import CheckpointStore


class SharedStore:
    """A `CheckpointStore` over another one: the first `open` opens it, the last `close` closes it.

    A fan-out and its App share their store this way. To share a store between fan-outs that run at the same time,
    give all of them the same `SharedStore`. Each user closes it exactly once.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self.durable = store.durable
        self._users = 0
        self._is_open = False
        #: Held while the store is opened or closed.
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        self._users += 1
        try:
            async with self._lock:
                if not self._is_open:
                    await self._store.open()
                    self._is_open = True
        except BaseException:
            self._users -= 1
            raise

    async def close(self) -> None:
        self._users -= 1
        async with self._lock:
            if self._is_open and self._users == 0:
                self._is_open = False
                await self._store.close()

    # -- delegation ---------------------------------------------------------------------------------------------

    async def register_worker(self, worker: WorkerIdentity) -> None:
        await self._store.register_worker(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        await self._store.deregister_worker(worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        return await self._store.create(run, worker_id=worker_id)

    async def append(self, claim: Claim, write: Append) -> None:
        await self._store.append(claim, write)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await self._store.load(run_id, after=after)

    async def get_record(self, run_id: str) -> RunRecord:
        return await self._store.get_record(run_id)

    async def release(self, claim: Claim, release: Release) -> None:
        await self._store.release(claim, release)

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
