"""One of two processes that share a battery in the store of their Apps: python -m ... URL BATTERY NAME.

It executes `RUNS` runs and prints a line per model call. It begins when it reads a line.
"""

import asyncio
import sys
from typing import Any

from holdfast import Agent, App, Reply, WorkerSettings
from holdfast.batteries.budget import Budget, Limit
from holdfast.batteries.rate_limits import RateLimits

#: Runs of one process, and what both processes may execute together.
RUNS, ALLOWED = 5, 6


async def model(messages: Any, tools: Any) -> Reply:
    print("called", flush=True)
    return Reply(text="done")


async def main(url: str, battery: str, name: str) -> None:
    agent = Agent(name=name, model=model)
    budget = Budget(Limit(runs=ALLOWED, per="all")) if battery == "budget" else None
    rate_limits = None if budget else RateLimits(requests_per_minute=ALLOWED)
    worker = WorkerSettings(take_runs=False, handle_signals=False)
    async with App([agent], url, budget=budget, rate_limits=rate_limits, worker=worker) as app:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(RUNS):
            await app.submit(agent, "go", run_id=f"{name}-{number}")
        await app.recover()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
