"""The calls of users and workers on a store that holds many runs."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from bench.systems.holdfast.agent import store_url
from bench.systems.holdfast.filled_store import PARKED, WORKER, create, fill
from bench.systems.protocol import Job, Result

from holdfast import Agent, App, Reply, RunWaiting, ToolCall, User, wait_for
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core import Message, ToolSchema
from holdfast.stores.from_url import store_from_url

#: How often each call is made. The median counts.
CALLS = 25
#: Ended runs that a purge removes.
EXPIRED = 500


async def filled_store(job: Job) -> Result:
    """Measure beside many runs, of which a third each is queued, waiting and done."""
    url = store_url(job)
    store, woken = store_from_url(url), asyncio.Event()
    async with App([_make_agent(woken)], store) as app:
        await fill(store, url, job["runs"])
        return {
            "submit": await _measure(lambda: app.submit("bench", "go")),
            "claim": await _measure(lambda: store.claim_next(WORKER.worker_id, agents=[PARKED], limit=1)),
            "page": await _measure(lambda: store.list_page(limit=50)),
            "wake": await _measure_wake_up(app, woken),
            "purge": await _measure_purge(store),
        }


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


async def _measure_purge(store: RunStore) -> float:
    """Return the seconds that it takes to remove a batch of ended runs whose retention is over."""
    expired = Release(status=RunStatus.DONE, retention=timedelta(0))
    runs = (create(store, RunStatus.DONE, f"expired-{number}", expired) for number in range(EXPIRED))
    await asyncio.gather(*runs)
    began = time.perf_counter()
    removed = await store.purge(limit=EXPIRED)  # the worker may have removed some
    return (time.perf_counter() - began) / removed * EXPIRED
