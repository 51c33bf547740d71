"""A run that many watch, beside one in an App without events and retention.

With no watchers it is the cost of features that a run does not use.
"""

import asyncio
import statistics
import time
from dataclasses import replace
from datetime import timedelta

from bench.systems.holdfast.agent import BenchAgent, store_url
from bench.systems.protocol import Job, Result

from holdfast import App, CheckpointSettings, Retention

#: Runs of each App, in turn.
PAIRS = 5

_REMOVE_AT_END = CheckpointSettings(retention=Retention(done=timedelta(0)))


class WatchedAgent(BenchAgent):
    """An agent whose runs are watched from their first tool call on."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.begun = asyncio.Event()

    async def look(self, number: int) -> str:
        self.begun.set()
        return await super().look(number)


async def watched_run(job: Job) -> Result:
    agent, url = WatchedAgent(job), store_url(job)
    plain_app = App([agent], url, worker=False, checkpoint=_REMOVE_AT_END)
    plain_app.ports = replace(plain_app.ports, observers=())  # type: ignore[misc]
    plain, watched = list[float](), list[float]()
    async with plain_app, App([agent], url, worker=False) as app:
        for number in range(PAIRS):
            plain.append(await _run(plain_app, agent, f"plain-{number}", watchers=0))
            watched.append(await _run(app, agent, f"watched-{number}", watchers=job["watchers"]))
    return {"plain_step": statistics.median(plain) / job["steps"], "step": statistics.median(watched) / job["steps"]}


async def _run(app: App, agent: WatchedAgent, run_id: str, *, watchers: int) -> float:
    """Return the seconds of a run."""
    agent.begun.clear()

    async def watch() -> None:
        await agent.begun.wait()
        async for _ in app.events(run_id):
            pass

    watching = [asyncio.create_task(watch()) for _ in range(watchers)]
    began = time.perf_counter()
    await app.run(agent, "go", run_id=run_id)
    took = time.perf_counter() - began
    await asyncio.gather(*watching)
    return took
