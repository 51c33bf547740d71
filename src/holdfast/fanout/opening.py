"""A store that several fan-outs of one process use is open until the last of them has ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from holdfast.checkpoint.store import CheckpointStore


@dataclass(slots=True)
class _Use:
    fanouts: int = 0
    is_open: bool = False
    #: Held while the store is opened or closed.
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)


#: Of the stores that are in use now, by the id of the object.
_USES: dict[int, _Use] = {}


@asynccontextmanager
async def opened(store: CheckpointStore) -> AsyncIterator[None]:
    """The store is open meanwhile. The first to come opens it, the last to leave closes it."""
    use = _USES.setdefault(id(store), _Use())
    use.fanouts += 1
    try:
        async with use.changing:
            if not use.is_open:
                await store.open()
                use.is_open = True
        yield
    finally:
        use.fanouts -= 1
        try:
            async with use.changing:
                if use.is_open and not use.fanouts:
                    use.is_open = False
                    await store.close()
        finally:
            if not use.fanouts:
                _USES.pop(id(store), None)
