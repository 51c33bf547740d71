"""A store that acknowledges before it writes."""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.crash.agents import single

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.opening import store_from_url
from holdfast.checkpoint.record import Ending


class HastyStore:
    """Writes what was appended when the next call comes."""

    def __init__(self, url: str) -> None:
        self._inner = store_from_url(url)
        self._waiting: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, claim: Claim, write: Write) -> None:
        await self._catch_up()
        self._waiting = lambda: self._inner.append(claim, write)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await self._catch_up()
        await self._inner.settle(claim, ending)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self._catch_up()
        await self._inner.remove(run_id, claim=claim)

    async def _catch_up(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await waiting()


agent = single
