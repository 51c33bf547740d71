"""The cost of runs that wait."""

import asyncio
import time

from bench.systems.footprint import footprint
from bench.systems.holdfast.agent import BenchAgent, make_app
from bench.systems.protocol import Job, Result, processor_seconds, resident_bytes


class WaitingAgent(BenchAgent):
    """An agent whose tool waits until it is stopped."""

    def __init__(self, job: Job) -> None:
        super().__init__({**job, "steps": 1})
        self._expected, self._waiting = job["runs"], 0
        self.all_wait, self.enough = asyncio.Event(), asyncio.Event()

    async def look(self, number: int) -> str:
        self._waiting += 1
        if self._waiting == self._expected:
            self.all_wait.set()
        await self.enough.wait()
        return "seen"


async def waiting_runs(job: Job) -> Result:
    agent = WaitingAgent(job)
    async with make_app(job, agent) as app:
        memory = resident_bytes()
        runs = [asyncio.create_task(app.run(agent, "go")) for _ in range(job["runs"])]
        await agent.all_wait.wait()
        await asyncio.sleep(1)  # the replies may not be written yet while their tools wait
        memory = resident_bytes() - memory
        before, spent, began = footprint(job), processor_seconds(), time.perf_counter()
        await asyncio.sleep(job["seconds"])
        spent, took = processor_seconds() - spent, time.perf_counter() - began
        written = footprint(job).written_bytes - before.written_bytes
        agent.enough.set()
        await asyncio.gather(*runs)
    return {"cpu_share": spent / took, "memory_bytes": memory, "written_bytes": written}
