"""A store around another that can be watched, slowed, made to fail, or cut off as by the death of its process."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    Mail,
    NewRun,
    Pending,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunRecord,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import END, RunStore, iter_runs
from holdfast.checkpoint.workers import Claim, Fleet, LimitUsage, WorkerHeartbeat, WorkerIdentity
from holdfast.config import LimitKind
from holdfast.db.tables import Tables

#: Awaited before each call, with the method's name. What it raises, the caller gets, and nothing is done.
Before = Callable[[str], Awaitable[None]]

_WRITE_METHODS = frozenset({"create", "append", "release", "remove", "claim", "claim_next", "post"})


class ProbeStore:
    """Passes everything on to `inner`, as long as it is allowed to."""

    durable = False

    def __init__(self, inner: RunStore, *, before: Before | None = None, loop_turns: int = 0) -> None:
        """Watch `inner`.

        Args:
            turns: how often the event loop goes round before and after each call, so that others can come between.
        """
        self.inner = inner
        self.transactions = inner.transactions
        self.before = before
        self.loop_turns = loop_turns
        #: The methods that were called and not refused, in order.
        self.calls: list[str] = []
        #: The entries that arrived, as one list for each write.
        self.writes: list[list[Entry]] = []
        #: How the records looked when the store was closed.
        self.at_close: list[RunRecord] | None = None
        self._dead = False
        self._written = asyncio.Event()

    async def wait_for_entries(self, kind: EntryKind, count: int) -> None:
        """Return once `count` entries of this kind have been written."""
        while sum(kinds.count(kind) for kinds in self.kinds) < count:
            await self._written.wait()

    def _record_entries(self, entries: Sequence[Entry]) -> None:
        self.writes.append(list(entries))
        self._written.set()
        self._written = asyncio.Event()

    def die(self) -> None:
        """Nothing more gets through: what a SIGKILL does to the process on this side."""
        self._dead = True

    def fail(self, method: str, *errors: BaseException) -> None:
        """Refuse the next calls of `method` with these errors, in this order; then work again."""
        left = list(errors)

        async def refuse(called: str) -> None:
            if called == method and left:
                raise left.pop(0)

        self.before = refuse

    @property
    def write_calls(self) -> list[str]:
        """The calls that changed something, in order."""
        return [call for call in self.calls if call in _WRITE_METHODS]

    @property
    def kinds(self) -> list[list[EntryKind]]:
        """The kinds of the entries that arrived, as one list for each write."""
        return [[entry.kind for entry in write] for write in self.writes]

    async def _enter(self, method: str) -> None:
        if self._dead or self.at_close is not None:
            raise StoreClosed(f"{method}: this side of the store is gone")
        await self._yield_to_loop()
        if self.before is not None:
            await self.before(method)
        self.calls.append(method)

    async def _yield_to_loop(self) -> None:
        for _ in range(self.loop_turns):
            await asyncio.sleep(0)

    async def open(self) -> None:
        await self._enter("open")
        await self.inner.open()

    async def close(self) -> None:
        """Close this side. The inner store stays open, so that a test can look into it."""
        await self._enter("close")
        self.at_close = [record async for record in iter_runs(self.inner)]

    def tables(self) -> Tables:
        return self.inner.tables()

    async def register_worker(self, worker: WorkerIdentity) -> None:
        await self._enter("register_worker")
        await self.inner.register_worker(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        await self._enter("deregister_worker")
        await self.inner.deregister_worker(worker_id)

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        await self._enter("list_workers")
        return await self.inner.list_workers()

    async def read_fleet(self) -> Fleet:
        await self._enter("read_fleet")
        return await self.inner.read_fleet()

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        await self._enter("create")
        claim = await self.inner.create(run, worker_id=worker_id, connection=connection)
        self._record_entries(run.entries)
        await self._yield_to_loop()
        return claim

    async def append(self, claim: Claim, write: Append) -> None:
        await self._enter("append")
        await self.inner.append(claim, write)
        self._record_entries(write.entries)
        await self._yield_to_loop()

    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        await self._enter("transact")
        return await self.inner.transact(claim, function, make_write)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        await self._enter("load" if after < END else "get_record")
        return await self.inner.load(run_id, after=after)

    async def release(self, claim: Claim, release: Release) -> None:
        await self._enter("release")
        await self.inner.release(claim, release)
        await self._yield_to_loop()

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        await self._enter("remove")
        await self.inner.remove(run_id, claim=claim, erase=erase)
        await self._yield_to_loop()

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        await self._enter("list_page")
        return await self.inner.list_page(filter, limit=limit, cursor=cursor, oldest_first=oldest_first)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        await self._enter("post")
        receipt = await self.inner.post(run_id, mail)
        await self._yield_to_loop()
        return receipt

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        await self._enter("claim")
        return await self.inner.claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        await self._enter("claim_next")
        return await self.inner.claim_next(worker_id, agents=agents, limit=limit)

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        await self._enter("set_limit")
        return await self.inner.set_limit(kind, name, max_runs, default=default)

    async def list_limits(self) -> Sequence[LimitUsage]:
        await self._enter("list_limits")
        return await self.inner.list_limits()

    async def request_cancel(self, run_id: str) -> None:
        await self._enter("request_cancel")
        await self.inner.request_cancel(run_id)

    async def pending(self, worker_id: str) -> Pending:
        await self._enter("pending")
        return await self.inner.pending(worker_id)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        await self._enter("wait_for_change")
        return await self.inner.wait_for_change(timeout)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._enter("put_draft")
        await self.inner.put_draft(claim, draft)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        await self._enter("read_draft")
        return await self.inner.read_draft(run_id, keep_for=keep_for)

    async def purge(self, *, limit: int = 100) -> int:
        await self._enter("purge")
        return await self.inner.purge(limit=limit)
