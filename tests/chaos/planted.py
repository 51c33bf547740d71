"""Bugs that the chaos test has to find, planted in its workers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, RunNotClaimable, RunNotFound
from holdfast.checkpoint.handle import StoreCheckpointer
from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.lifecycle import CLAIMABLE
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.store import CheckpointStore


class UnfencedStore:
    """Looks up the newest claim before each write that was refused: so nothing is ever refused."""

    def __init__(self, inner: CheckpointStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, claim: Claim, write: Write) -> None:
        async def again(fresh: Claim, next_seq: int) -> None:
            entries = _numbered(write.entries, next_seq)
            await self._inner.append(fresh, msgspec.structs.replace(write, entries=entries))

        await self._insist(claim, lambda: self._inner.append(claim, write), again)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        async def again(fresh: Claim, next_seq: int) -> None:
            entries = _numbered(ending.entries, next_seq)
            await self._inner.settle(fresh, msgspec.structs.replace(ending, entries=entries))

        await self._insist(claim, lambda: self._inner.settle(claim, ending), again)

    async def _insist(
        self,
        claim: Claim,
        write: Callable[[], Awaitable[None]],
        again: Callable[[Claim, int], Awaitable[None]],
    ) -> None:
        try:
            await write()
        except ClaimLost:
            try:
                fresh = await self._inner.claim(claim.run_id, claim.worker_id, statuses=CLAIMABLE, steal=True)
                stored = await self._inner.load(claim.run_id)
                await again(fresh, stored.record.next_seq)
            except (ClaimLost, RunNotFound, RunNotClaimable):
                return  # it is over by now; the write is dropped without a word


def _numbered(entries: Any, first: int) -> list[Entry]:
    return [msgspec.structs.replace(entry, seq=first + place) for place, entry in enumerate(entries)]


def do_not_await_the_intent() -> None:
    """Saves return at once, and are written a while later."""
    save = StoreCheckpointer.save
    under_way: set[asyncio.Task[None]] = set()

    async def save_later(self: StoreCheckpointer, state: Any, *, urgent: bool = False) -> None:
        async def later() -> None:
            await asyncio.sleep(2)
            await save(self, state, urgent=urgent)

        task = asyncio.create_task(later())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    StoreCheckpointer.save = save_later  # type: ignore[method-assign]
