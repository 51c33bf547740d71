"""A store that acknowledges before it writes."""

from tests.testing.crash.agents import single

from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Release
from holdfast.checkpoint.workers import Claim
from holdfast.stores.from_url import store_from_url
from holdfast.stores.wrapper import StoreWrapper


class EarlyAckStore(StoreWrapper):
    """Delays each append until the next write."""

    def __init__(self, url: str) -> None:
        super().__init__(store_from_url(url))
        self._pending_append: tuple[Claim, Append] | None = None

    async def append(self, claim: Claim, write: Append) -> None:
        await self._flush()
        self._pending_append = claim, write

    async def release(self, claim: Claim, release: Release) -> None:
        await self._flush()
        await self._store.release(claim, release)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        await self._flush()
        await self._store.remove(run_id, claim=claim, erase=erase)

    async def _flush(self) -> None:
        pending, self._pending_append = self._pending_append, None
        if pending is not None:
            await self._store.append(*pending)


agent = single
