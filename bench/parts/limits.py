"""A claim within limits: `python -m bench.parts.limits`.

A queue of 200,000 runs of 50 callers with 1,000 keys. 200 of the keys have a limit, and 150 of these are full. In the
second case the older half of the queue has only keys with a limit, so a claim has to look past runs without a slot.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.postgres_server import LocalServer, fresh_database

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.stores.from_url import store_from_url

RUNS, CALLERS, KEYS, LIMITS, FULL = 200_000, 50, 1000, 200, 150
#: Writes in progress at once while the store is filled.
BATCH = 500
ROUNDS = 15


def spread_keys(number: int) -> str:
    return f"key-{number % KEYS}"


def block_older_half(number: int) -> str:
    return f"key-{number % (LIMITS if number < RUNS // 2 else KEYS)}"


CASES: dict[str, Callable[[int], str]] = {"keys spread": spread_keys, "older half blocked": block_older_half}


async def fill(store: RunStore, get_key: Callable[[int], str]) -> None:
    async def create(number: int) -> None:
        entry = Entry(seq=0, kind=EntryKind.BEGIN, body=b"{}")
        run = NewRun(
            run_id=f"run-{number}",
            agent_name="agent",
            caller_id=f"caller-{number % CALLERS}",
            concurrency_key=get_key(number),
            info=b"{}",
            progress=b"{}",
            entries=[entry],
        )
        await store.create(run)

    for first in range(0, RUNS, BATCH):
        await asyncio.gather(*(create(number) for number in range(first, first + BATCH)))
    for number in range(LIMITS):
        await store.set_limit("key", f"key-{number}", 0 if number < FULL else 1)


async def measure(url: str, get_key: Callable[[int], str]) -> dict[int, float]:
    """Return the milliseconds of a claim, by the number of runs that it takes."""
    store = store_from_url(url)
    await store.open()
    try:
        worker = WorkerIdentity(worker_id="worker", process=this_process())
        await store.register_worker(worker)
        await fill(store, get_key)
        return {room: await measure_claims(store, worker.worker_id, room) for room in (1, 16)}
    finally:
        await store.close()


async def measure_claims(store: RunStore, worker_id: str, room: int) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        claims = await store.claim_next(worker_id, agents=["agent"], limit=room)
        times.append(time.perf_counter() - began)
        assert len(claims) == room
    return statistics.median(times) * 1e3


def report(store: str, case: str, found: dict[int, float]) -> None:
    print(f"{store:<9} {case:<19}", *(f"claim of {room}: {each:.1f} ms" for room, each in found.items()), flush=True)


def main() -> None:
    server = LocalServer(fsync="on")
    try:
        for case, get_key in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                report("sqlite", case, asyncio.run(measure(f"sqlite:{Path(folder) / 'runs.db'}", get_key)))
            with fresh_database(server) as url:
                report("postgres", case, asyncio.run(measure(url, get_key)))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
