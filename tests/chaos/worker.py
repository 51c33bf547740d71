"""The program of a worker of the chaos test: `python -m tests.chaos.worker CONFIG`."""

import asyncio
import functools
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import msgspec
from tests.chaos.agent import Ledger, chaos_agent
from tests.chaos.planted_bugs import UnfencedStore, delay_saves
from tests.chaos.signalled import signalled_agent

from holdfast import App, WorkerSettings
from holdfast.checkpoint import workers
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.store import RunStore
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.sqlite import SqliteStore


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a worker."""

    url: str
    ledger: str
    #: The simulated host. Workers of one host detect a dead process at once, others by its heartbeat.
    host: str
    seconds: float
    concurrency: int
    #: A worker on another host counts as dead after this time without a heartbeat.
    lease_seconds: float = 1.0
    bug: str = ""


def open_store(url: str, *, lease_seconds: float = 1.0) -> RunStore:
    lease_timeout = timedelta(seconds=lease_seconds)
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite":
        return SqliteStore(rest, lease_timeout=lease_timeout)
    return PostgresStore(url, lease_timeout=lease_timeout)


async def work(config: WorkerConfig) -> None:
    """Serve until SIGTERM."""
    store = open_store(config.url, lease_seconds=config.lease_seconds)
    if config.bug == "unfenced":
        store = UnfencedStore(store)
    elif config.bug == "unawaited":
        delay_saves()
    ledger = Ledger(Path(config.ledger))
    agents = [chaos_agent(ledger, config.seconds), signalled_agent(ledger, config.seconds)]
    async with App(agents, store, worker=WorkerSettings(take_runs=False, concurrency=config.concurrency)) as app:
        with Path(config.ledger).with_name(f"ready-{os.getpid()}").open("a") as starts:
            starts.write("started\n")
        await app.serve()


if __name__ == "__main__":
    config = msgspec.json.decode(sys.argv[1], type=WorkerConfig)
    workers._host_id = functools.partial(getattr, config, "host")  # type: ignore[assignment]
    while True:
        try:
            asyncio.run(work(config))
            break
        except StoreUnavailable:
            # A server that refuses the first connection is reported at once. The supervisor of a fleet starts the
            # worker again.
            time.sleep(0.1)
