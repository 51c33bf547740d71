"""A pydantic-ai agent, bare and made durable by holdfast: `python -m bench.systems.pydantic_ai JOB`.

Its tool says nothing about its effect, so it counts as `once`: two commits a step.
"""

import time
from pathlib import Path

from bench.systems.footprint import footprint
from bench.systems.protocol import Job, Result, main
from bench.systems.pydantic_ai_agent import BenchAgent
from pydantic_ai import UsageLimits

from holdfast import App, Bounds
from holdfast.adapters.pydantic_ai import durable


async def agent_run(job: Job) -> Result:
    measured = BenchAgent(job)
    if job["variant"] == "bare":
        before, began = footprint(job), time.perf_counter()
        await measured.agent.run("go", usage_limits=UsageLimits(request_limit=None))
        return measured.describe_run(before, began)
    known = durable(measured.agent, bounds=Bounds(max_steps=job["steps"] + 1))
    async with App([known], f"sqlite:{Path(job['folder']) / 'runs.db'}", worker=False) as app:
        before, began = footprint(job), time.perf_counter()
        await app.run(known, "go")
    return measured.describe_run(before, began)


if __name__ == "__main__":
    main({"w5": agent_run}, packages=["holdfast", "pydantic-ai-slim"])
