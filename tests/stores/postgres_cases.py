"""What the tests of the PostgreSQL store share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from holdfast.checkpoint.stores.postgres import PostgresStore

#: For waits that end by themselves when the store does its part. Long, so that a busy machine is no failure.
LONG = 60.0


@contextlib.asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    """An open store; closed at the end."""
    store = PostgresStore(url, **settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def bounded() -> AsyncIterator[None]:
    """What waits in here for ever fails the test soon."""
    async with asyncio.timeout(LONG):
        yield
