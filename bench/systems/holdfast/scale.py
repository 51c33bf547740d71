"""The same calls on a store with a few runs, and on one with many."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from bench.systems.holdfast.agent import store_url
from bench.systems.protocol import Job, Result, processor_seconds

from holdfast import Agent, App, Message, Reply, RunWaiting, ToolCall, ToolSchema, User, wait_for
from holdfast.checkpoint.claim import WorkerIdentity, this_process
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.stores.url import store_from_url

#: How often each call is made. The median counts.
CALLS = 25
#: Runs that are in the store before the first measurement.
FEW = 20
#: Queued runs before the first measurement: a store may look at a few hundred to be fair to their callers.
WINDOW = 1000
#: Writes that are under way at once while the store is filled.
BATCH = 500


async def waiting_runs_in_store(job: Job) -> Result:
    """Measure a worker beside a few waiting runs, and beside many: it wakes one, executes a new one, and is idle.

    The others wait for mail that never comes.
    """
    store, woken = store_from_url(store_url(job)), asyncio.Event()
    async with App([_make_agent(woken)], store) as app:
        result: Result = {}
        for name, number in (("few", FEW), ("many", job["runs"])):
            await _fill(store, name, number, RunStatus.WAITING)
            result[name] = {
                "wake": await _measure_wake_up(app, woken),
                "result": await _measure(lambda: _submit_and_wait(app)),
                "page": await _measure(lambda: store.list_page(limit=50)),
                "cpu_share": await _measure_idle_worker(job["seconds"]),
            }
    return result


async def queued_runs_in_store(job: Job) -> Result:
    """Measure a claim and the first page of a store with a few queued runs, and with many."""
    store = store_from_url(store_url(job))
    await store.open()
    try:
        worker = await _register_worker(store)
        result: Result = {}
        for name, number in (("few", WINDOW), ("many", job["runs"])):
            await _fill(store, name, number, RunStatus.QUEUED)
            result[name] = {
                "claim": await _measure(lambda: store.claim_next(worker, agents=["bench"], limit=1)),
                "page": await _measure(lambda: store.list_page(limit=50)),
            }
        return result
    finally:
        await store.close()


async def kept_runs_in_store(job: Job) -> Result:
    """Measure calls of users, and a purge, on a store that keeps a few ended runs, and on one that keeps many."""
    store = store_from_url(store_url(job))
    async with App([_make_agent(asyncio.Event())], store) as app:
        result: Result = {}
        for name, number in (("few", FEW), ("many", job["runs"])):
            await _fill(store, name, number, RunStatus.DONE)
            result[name] = {
                "submit": await _measure(lambda: app.submit("bench", "go")),
                "result": await _measure(lambda: _submit_and_wait(app)),
                "page": await _measure(lambda: store.list_page(limit=50)),
                "purge": await _measure_purge(store, name),
            }
    return result


async def _measure_purge(store: CheckpointStore, prefix: str) -> float:
    """Return the seconds that it takes to remove a batch of ended runs whose retention is over."""
    await _fill(store, f"{prefix}-expired", BATCH, RunStatus.DONE, retention=timedelta(0))
    began = time.perf_counter()
    removed = await store.purge(limit=BATCH)  # the worker may have removed some
    return (time.perf_counter() - began) / removed * BATCH


def _make_agent(woken: asyncio.Event) -> Agent:
    """Build an agent that waits for a signal if its prompt says so, and answers."""

    async def reply(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if list(messages) == [User("wait")]:
            return Reply(tool_calls=[ToolCall(id="1", name="wait_for", arguments={"name": "go"})])
        woken.set()
        return Reply(text="done")

    return Agent(name="bench", model=reply, tools=[wait_for])


async def _measure(call: Callable[[], Awaitable[object]]) -> float:
    """Return the median of the seconds that the call takes."""
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _submit_and_wait(app: App) -> None:
    await app.result(await app.submit("bench", "go"))


async def _measure_wake_up(app: App, woken: asyncio.Event) -> float:
    """Return the median of the seconds from a signal to the next model call of the run that waits for it."""
    times = []
    for _ in range(CALLS):
        run_id = await app.submit("bench", "wait")
        with suppress(RunWaiting):
            await app.result(run_id)
        woken.clear()
        began = time.perf_counter()
        await app.signal(run_id, "go")
        await woken.wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


async def _measure_idle_worker(seconds: float) -> float:
    """Return the share of one processor that this process uses while no run is due."""
    spent, began = processor_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (processor_seconds() - spent) / (time.perf_counter() - began)


async def _fill(
    store: CheckpointStore,
    prefix: str,
    number: int,
    status: RunStatus,
    *,
    retention: timedelta | None = None,
) -> None:
    """Create runs of this status: queued ones, ones that wait for mail, or ended ones with their retention."""
    worker = None if status is RunStatus.QUEUED else await _register_worker(store)

    async def create(run_id: str) -> None:
        entry = Entry(seq=0, kind=EntryKind.BEGIN, body=b"{}")
        run = NewRun(run_id=run_id, agent_name="bench", caller_id="caller", entries=[entry], meta=b"{}", progress=b"{}")
        claim = await store.create(run, worker_id=worker)
        if claim is not None:
            wake_on = ["never"] if status is RunStatus.WAITING else ()
            await store.release(claim, Release(status=status, wake_on=wake_on, retention=retention))

    for first in range(0, number, BATCH):
        await asyncio.gather(*(create(f"{prefix}-{n}") for n in range(first, min(first + BATCH, number))))


async def _register_worker(store: CheckpointStore) -> str:
    worker = WorkerIdentity(worker_id="filler", process=this_process())
    await store.register_worker(worker)
    return worker.worker_id
