"""Bugs that the chaos test has to find, planted in its workers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, RunNotClaimable, RunNotFound
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Release
from holdfast.checkpoint.store import CheckpointStore


class UnfencedStore:
    """Looks up the newest claim before each write that was refused: so nothing is ever refused."""

    def __init__(self, inner: CheckpointStore) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, claim: Claim, write: Append) -> None:
        async def again(fresh: Claim, next_seq: int) -> None:
            entries = _renumber(write.entries, next_seq)
            await self._inner.append(fresh, msgspec.structs.replace(write, entries=entries))

        await self._retry_with_new_claim(claim, lambda: self._inner.append(claim, write), again)

    async def release(self, claim: Claim, release: Release) -> None:
        async def again(fresh: Claim, next_seq: int) -> None:
            entries = _renumber(release.entries, next_seq)
            await self._inner.release(fresh, msgspec.structs.replace(release, entries=entries))

        await self._retry_with_new_claim(claim, lambda: self._inner.release(claim, release), again)

    async def _retry_with_new_claim(
        self,
        claim: Claim,
        write: Callable[[], Awaitable[None]],
        again: Callable[[Claim, int], Awaitable[None]],
    ) -> None:
        try:
            await write()
        except ClaimLost:
            try:
                fresh = await self._inner.claim(claim.run_id, claim.worker_id, statuses=CLAIMABLE_STATUSES, steal=True)
                stored = await self._inner.load(claim.run_id)
                await again(fresh, stored.record.next_seq)
            except (ClaimLost, RunNotFound, RunNotClaimable):
                return  # it is over by now; the write is dropped without a word


def _renumber(entries: Any, first: int) -> list[Entry]:
    return [msgspec.structs.replace(entry, seq=first + place) for place, entry in enumerate(entries)]


def delay_saves() -> None:
    """Saves return at once, and are written a while later."""
    save = StoreCheckpointer.save
    under_way: set[asyncio.Task[None]] = set()

    async def save_later(self: StoreCheckpointer, state: Any, *, force: bool = False) -> None:
        async def later() -> None:
            await asyncio.sleep(2)
            await save(self, state, force=force)

        task = asyncio.create_task(later())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    StoreCheckpointer.save = save_later  # type: ignore[method-assign]
