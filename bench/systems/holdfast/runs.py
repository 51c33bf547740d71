"""One long run, and many at once."""

import asyncio
import time

from bench.systems.footprint import Footprint, footprint
from bench.systems.holdfast.agent import BenchAgent, make_app
from bench.systems.protocol import Job, Result, latencies


async def one_run(job: Job) -> Result:
    """Measure a step from one model call to the next: by then all of it is in the store."""
    ends = list[Footprint]()

    async def at_end() -> None:
        ends.append(footprint(job))  # before the last reply, because a finished run is removed

    agent = BenchAgent(job, at_end=at_end)
    async with make_app(job, agent) as app:
        before, began = footprint(job), time.perf_counter()
        await app.run(agent, "go")
    (stamps,), (end,) = agent.runs, ends
    stamps.times[0] = began
    return {
        "seconds": stamps.times[-1] - began,
        "step_seconds": stamps.step_seconds(),
        "transcript_bytes": 2 * job["bytes"] * job["steps"],
        **end.since(before),
    }


async def many_runs(job: Job) -> Result:
    """Measure from the start of the first run until the last one is removed."""
    agent = BenchAgent(job)
    async with make_app(job, agent) as app:
        began = time.perf_counter()
        await asyncio.gather(*(app.run(agent, "go") for _ in range(job["runs"])))
        took = time.perf_counter() - began
    times = [seconds for stamps in agent.runs for seconds in stamps.step_seconds()]
    return {"seconds": took, "runs": job["runs"], "steps": job["steps"], "latencies": latencies(times)}
