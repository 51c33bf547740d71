"""Planted bugs that the chaos test has to find."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.errors import ClaimLost, RunNotClaimable, RunNotFound
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import Release
from holdfast.checkpoint.workers import Claim
from holdfast.stores.wrapper import StoreWrapper


class UnfencedStore(StoreWrapper):
    """Steals the run again when a write is refused, so that no write is ever refused."""

    async def append(self, claim: Claim, write: Append) -> None:
        async def again(new_claim: Claim, next_seq: int) -> None:
            entries = _renumber(write.entries, next_seq)
            await self._store.append(new_claim, msgspec.structs.replace(write, entries=entries))

        await self._retry_with_new_claim(claim, self._store.append(claim, write), again)

    async def release(self, claim: Claim, release: Release) -> None:
        async def again(new_claim: Claim, next_seq: int) -> None:
            entries = _renumber(release.entries, next_seq)
            await self._store.release(new_claim, msgspec.structs.replace(release, entries=entries))

        await self._retry_with_new_claim(claim, self._store.release(claim, release), again)

    async def _retry_with_new_claim(
        self,
        claim: Claim,
        write: Awaitable[None],
        again: Callable[[Claim, int], Awaitable[None]],
    ) -> None:
        try:
            await write
        except ClaimLost:
            try:
                new_claim = await self._store.claim(claim.run_id, claim.worker_id, steal=True)
                stored = await self._store.load(claim.run_id)
                await again(new_claim, stored.record.next_seq)
            except (ClaimLost, RunNotFound, RunNotClaimable):
                return  # the run is terminal or removed: drop the write silently


def _renumber(entries: Any, first: int) -> list[Entry]:
    return [msgspec.structs.replace(entry, seq=first + index) for index, entry in enumerate(entries)]


def delay_saves() -> None:
    """Make saves return at once and write 2 s later."""
    save = StoreCheckpointer.save
    pending: set[asyncio.Task[None]] = set()

    async def save_later(self: StoreCheckpointer, state: Any, *, force: bool = False) -> None:
        async def later() -> None:
            await asyncio.sleep(2)
            await save(self, state, force=force)

        task = asyncio.create_task(later())
        pending.add(task)
        task.add_done_callback(pending.discard)

    StoreCheckpointer.save = save_later  # type: ignore[method-assign]
