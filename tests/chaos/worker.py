"""The program of a worker of the chaos test: `python -m tests.chaos.worker ORDERS`."""

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
from tests.chaos.agent import Ledger, chaos_agent
from tests.chaos.planted_bugs import UnfencedStore, delay_saves

from holdfast import App, WorkerSettings
from holdfast.checkpoint import claim
from holdfast.checkpoint.store import CheckpointStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore

#: A worker on another host that has not been heard of for so long is dead.
LEASE_TIMEOUT = timedelta(seconds=1)


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
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
        return SqliteStore(rest, lease_timeout=LEASE_TIMEOUT)
    return PostgresStore(url, lease_timeout=LEASE_TIMEOUT)


async def work(orders: WorkerConfig) -> None:
    """Serve until SIGTERM."""
    store = open_store(orders.url)
    if orders.bug == "unfenced":
        store = UnfencedStore(store)
    elif orders.bug == "unawaited":
        delay_saves()
    agent = chaos_agent(Ledger(Path(orders.ledger)), orders.seconds)
    async with App(
        [agent], store, worker=WorkerSettings(recover_on_start=False, concurrency=orders.concurrency)
    ) as app:
        Path(orders.ledger).with_name(f"ready-{os.getpid()}").touch()
        await app.serve()


if __name__ == "__main__":
    told = msgspec.json.decode(sys.argv[1], type=WorkerConfig)
    claim._host_id = lambda: told.host  # type: ignore[assignment]
    asyncio.run(work(told))
