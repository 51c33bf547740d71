"""A store wrapper that delegates everything: the base of wrappers that change a few methods."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    Mail,
    NewRun,
    Pending,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim, Fleet, LimitUsage, WorkerHeartbeat, WorkerIdentity
from holdfast.config import LimitKind
from holdfast.core.ports import Transactions
from holdfast.db.tables import Tables


class StoreWrapper:
    """A `RunStore` that passes every call to another one."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.durable: bool = store.durable
        self.transactions: Transactions = store.transactions

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
        return await self._store.list_workers()

    async def read_fleet(self) -> Fleet:
        return await self._store.read_fleet()

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await self._store.create(run, worker_id=worker_id, connection=connection)

    def append(self, claim: Claim, write: Append) -> Awaitable[None]:
        return self._store.append(claim, write)

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        return await self._store.transact(claim, function, make_write)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await self._store.load(run_id, after=after)

    async def release(self, claim: Claim, release: Release) -> None:
        await self._store.release(claim, release)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        await self._store.remove(run_id, claim=claim, erase=erase)

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        return await self._store.list_page(filter, limit=limit, cursor=cursor, oldest_first=oldest_first)

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

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        return await self._store.set_limit(kind, name, max_runs, default=default)

    async def list_limits(self) -> Sequence[LimitUsage]:
        return await self._store.list_limits()

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        return await self._store.post(run_id, mail)

    async def request_cancel(self, run_id: str) -> None:
        await self._store.request_cancel(run_id)

    async def pending(self, worker_id: str) -> Pending:
        return await self._store.pending(worker_id)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await self._store.wait_for_change(timeout)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._store.put_draft(claim, draft)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        return await self._store.read_draft(run_id, keep_for=keep_for)

    async def purge(self, *, limit: int = 100) -> int:
        return await self._store.purge(limit=limit)
