"""What the tests of the PostgreSQL store share."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from tests.postgres_proxy import CuttingProxy

from holdfast.stores.postgres import PostgresStore

#: For waits that end by themselves when the store does its part. Long, so that a busy machine is no failure.
LONG = 60.0


@contextlib.asynccontextmanager
async def open_store(url: str, **settings: Any) -> AsyncIterator[PostgresStore]:
    """An open store; closed at the end."""
    store = PostgresStore(url, **settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def route_through(proxy: CuttingProxy, url: str) -> str:
    """The same database, by way of the proxy."""
    return proxy.url(urlsplit(url).path.removeprefix("/"))


@contextlib.asynccontextmanager
async def fail_after_timeout() -> AsyncIterator[None]:
    """What waits in here indefinitely fails the test soon."""
    async with asyncio.timeout(LONG):
        yield


async def wait_until_listening(store: PostgresStore) -> None:
    """Wait for the notification that the store has sent to itself. `open` waits only a moment for it."""

    async def is_listening() -> bool:
        return store.is_listening

    await wait_until(is_listening)


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns once the condition holds. For what has no notification; it has to come by itself."""
    async with fail_after_timeout():
        while not await condition():  # noqa: ASYNC110  there is no event to wait for
            await asyncio.sleep(0.02)
