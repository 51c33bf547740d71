"""The program of a worker of the chaos test: `python -m tests.chaos.worker ORDERS`."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
from tests.chaos.agent import Ledger, chaos_agent
from tests.chaos.planted import UnfencedStore, do_not_await_the_intent

from holdfast import App
from holdfast.checkpoint import liveness
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.stores.postgres import PostgresStore
from holdfast.checkpoint.stores.sqlite import SqliteStore

#: A worker on another host that has not been heard of for so long is dead.
DEAD_AFTER = timedelta(seconds=1)


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do."""

    url: str
    ledger: str
    #: The host it takes itself to be on: workers of one host see each other's deaths at once, others wait.
    host: str
    seconds: float
    concurrency: int
    bug: str = ""


def open_store(url: str) -> CheckpointStore:
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        return SqliteStore(rest, dead_after=DEAD_AFTER)
    return PostgresStore(url, dead_after=DEAD_AFTER)


async def work(orders: Orders) -> None:
    """Serve until SIGTERM."""
    store = open_store(orders.url)
    if orders.bug == "unfenced":
        store = UnfencedStore(store)
    elif orders.bug == "unawaited":
        do_not_await_the_intent()
    agent = chaos_agent(Ledger(Path(orders.ledger)), orders.seconds)
    async with App([agent], store, recover=False, concurrency=orders.concurrency) as app:
        Path(orders.ledger).with_name(f"ready-{os.getpid()}").touch()
        await app.serve()


if __name__ == "__main__":
    told = msgspec.json.decode(sys.argv[1], type=Orders)
    liveness._host = lambda: told.host  # type: ignore[assignment]
    asyncio.run(work(told))
