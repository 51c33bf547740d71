"""A store around another that can be watched, slowed, made to fail, or cut off as by the death of its process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import timedelta

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.journal import Entry, EntryKind, Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore

#: Awaited before each call, with the method's name. What it raises, the caller gets, and nothing is done.
Before = Callable[[str], Awaitable[None]]

_CHANGES = frozenset({"create", "append", "settle", "remove", "claim", "claim_next"})


class ProbeStore:
    """Passes everything on to `inner`, as long as it is allowed to."""

    durable = False

    def __init__(self, inner: CheckpointStore, *, before: Before | None = None, turns: int = 0) -> None:
        """Watch `inner`.

        Args:
            turns: how often the event loop goes round before and after each call, so that others can come between.
        """
        self.inner = inner
        self.before = before
        self.turns = turns
        #: The methods that were called and not refused, in order.
        self.calls: list[str] = []
        #: The entries that arrived, as one list for each write.
        self.writes: list[list[Entry]] = []
        #: How the records looked when the store was closed.
        self.at_close: list[RunRecord] | None = None
        self._dead = False
        self._written = asyncio.Event()

    async def wrote(self, kind: EntryKind, count: int) -> None:
        """Return once `count` entries of this kind have been written."""
        while sum(kinds.count(kind) for kinds in self.kinds) < count:
            await self._written.wait()

    def _arrived(self, entries: Sequence[Entry]) -> None:
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
    def changes(self) -> list[str]:
        """The calls that changed something, in order."""
        return [call for call in self.calls if call in _CHANGES]

    @property
    def kinds(self) -> list[list[EntryKind]]:
        """The kinds of the entries that arrived, as one list for each write."""
        return [[entry.kind for entry in write] for write in self.writes]

    async def _pass(self, method: str) -> None:
        if self._dead or self.at_close is not None:
            raise StoreClosed(f"{method}: this side of the store is gone")
        await self._turn()
        if self.before is not None:
            await self.before(method)
        self.calls.append(method)

    async def _turn(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)

    async def open(self) -> None:
        await self._pass("open")
        await self.inner.open()

    async def close(self) -> None:
        """Close this side. The inner store stays open, so that a test can look into it."""
        await self._pass("close")
        self.at_close = [record async for record in self.inner.records()]

    async def enlist(self, worker: Worker) -> None:
        await self._pass("enlist")
        await self.inner.enlist(worker)

    async def discharge(self, worker_id: str) -> None:
        await self._pass("discharge")
        await self.inner.discharge(worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        await self._pass("create")
        claim = await self.inner.create(run, worker_id=worker_id)
        self._arrived(run.entries)
        await self._turn()
        return claim

    async def append(self, claim: Claim, write: Write) -> None:
        await self._pass("append")
        await self.inner.append(claim, write)
        self._arrived(write.entries)
        await self._turn()

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        await self._pass("load")
        return await self.inner.load(run_id, after=after)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await self._pass("settle")
        await self.inner.settle(claim, ending)
        await self._turn()

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self._pass("remove")
        await self.inner.remove(run_id, claim=claim)
        await self._turn()

    async def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        await self._pass("records")
        async for record in self.inner.records(wanted):
            yield record

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        await self._pass("claim")
        return await self.inner.claim(run_id, worker_id, statuses=statuses, steal=steal)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        await self._pass("claim_next")
        return await self.inner.claim_next(worker_id, agents=agents, limit=limit)

    async def request_cancel(self, run_id: str) -> None:
        await self._pass("request_cancel")
        await self.inner.request_cancel(run_id)

    async def cancels(self, worker_id: str) -> Sequence[str]:
        await self._pass("cancels")
        return await self.inner.cancels(worker_id)

    async def changed(self, within: timedelta) -> bool:
        await self._pass("changed")
        return await self.inner.changed(within)

    async def purge(self, *, limit: int = 100) -> int:
        await self._pass("purge")
        return await self.inner.purge(limit=limit)
