"""A store that several users in one process open and close independently."""

import asyncio

from holdfast.checkpoint.store import RunStore
from holdfast.stores.wrapper import StoreWrapper


class SharedStore(StoreWrapper):
    """A `RunStore` over another one: the first `open` opens it, the last `close` closes it.

    A fan-out and its App share their store this way. To share a store between fan-outs that run at the same time,
    give all of them the same `SharedStore`. Each user closes it exactly once.
    """

    def __init__(self, store: RunStore) -> None:
        super().__init__(store)
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
