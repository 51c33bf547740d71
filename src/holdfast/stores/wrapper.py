"""A store wrapper that delegates everything: the base of wrappers that change a few methods."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.claims import Claim, WorkerHeartbeat, WorkerIdentity
from holdfast.checkpoint.concurrency_limits import LimitUsage
from holdfast.checkpoint.fleet import RunCount, SupportsFleetView, count_runs
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    Mail,
    NewRun,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunRecord,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import NO_TRANSACTIONS, RunStore, SupportsTransactions
from holdfast.config import ConcurrencyLimit, LimitKind
from holdfast.core.errors import DefinitionError
from holdfast.db.tables import Tables


class StoreWrapper:
    """A `RunStore` that passes every call to another one."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.durable: bool = store.durable

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    def tables(self) -> Tables:
        return self._store.tables()

    async def register_worker(self, worker: WorkerIdentity) -> None:
        await self._store.register_worker(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        await self._store.deregister_worker(worker_id)

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        return await self._get_fleet_view().list_workers()

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        return await self._store.create(run, worker_id=worker_id)

    async def create_within(self, connection: Any, run: NewRun) -> bytes | None:
        """Queue a run in a transaction of the user, if the wrapped store can."""
        if not isinstance(self._store, SupportsTransactions):
            raise DefinitionError(NO_TRANSACTIONS)
        return await self._store.create_within(connection, run)

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

    async def list_page(
        self, filter: RunFilter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> RunPage:
        return await self._store.list_page(filter, limit=limit, cursor=cursor)

    async def count_by_status(self, limit: int) -> Mapping[RunStatus, int]:
        return await self._get_fleet_view().count_by_status(limit)

    def _get_fleet_view(self) -> SupportsFleetView:
        if not isinstance(self._store, SupportsFleetView):
            raise DefinitionError("the wrapped store neither lists workers nor counts runs: read its records")
        return self._store

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        return await self._store.claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        return await self._store.claim_next(worker_id, agents=agents, limit=limit)

    async def set_limit(self, limit: ConcurrencyLimit, *, default: bool = False) -> None:
        await self._store.set_limit(limit, default=default)

    async def remove_limit(self, kind: LimitKind, name: str) -> bool:
        return await self._store.remove_limit(kind, name)

    async def list_limits(self) -> Sequence[LimitUsage]:
        return await self._store.list_limits()

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        return await self._store.post(run_id, mail)

    async def read_mail(self, run_id: str) -> Sequence[Mail]:
        return await self._store.read_mail(run_id)

    async def pending_mail(self, worker_id: str) -> Sequence[str]:
        return await self._store.pending_mail(worker_id)

    async def request_cancel(self, run_id: str) -> None:
        await self._store.request_cancel(run_id)

    async def pending_cancellations(self, worker_id: str) -> Sequence[str]:
        return await self._store.pending_cancellations(worker_id)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await self._store.wait_for_change(timeout)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._store.put_draft(claim, draft)

    async def read_draft(self, run_id: str) -> bytes | None:
        return await self._store.read_draft(run_id)

    async def request_drafts(self, run_id: str, ttl: timedelta) -> None:
        await self._store.request_drafts(run_id, ttl)

    async def requested_drafts(self, run_ids: Collection[str]) -> Collection[str]:
        return await self._store.requested_drafts(run_ids)

    async def count_runs(self) -> Sequence[RunCount]:
        return await count_runs(self._store)

    async def purge(self, *, limit: int = 100) -> int:
        return await self._store.purge(limit=limit)
