"""Absurd: an agent as a task, a step for each reply of the model and each result of a tool, on PostgreSQL.

A step of the agent lasts from one call of the model to the next: by then Absurd has committed both. The worker is its
asynchronous one, in the process that spawned the tasks. It has one connection, as its documentation has it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from bench.systems import protocol
from bench.systems.footprint import Footprint, footprint
from bench.systems.protocol import Job, Result, text
from bench.systems.step_functions import BenchAgent, make_workloads
from bench.systems.workflow_load import SLEEP_SECONDS, SleepTimes, measure_workflows

#: How often a worker with many tasks at once looks for more.
POLL_SECONDS = 0.01

CAVEATS = {
    "all": "A reply is safe before its tool is called, so a step is two commits.",
    "w12": "A worker that polls every 10 ms, not every 250.",
    "w13": "Each sleep ends the attempt.",
    "w2": "One worker with one connection, and a concurrency of all runs.",
}


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[AsyncAbsurd]:
    url = job["postgres"] or ""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)
    absurd = AsyncAbsurd(url)
    await absurd.create_queue()
    try:
        yield absurd
    finally:
        await absurd.close()


async def run_all(job: Job, agent: BenchAgent, runs: int) -> tuple[Footprint, float, float]:
    async with opened(job) as absurd:

        @absurd.register_task("agent")
        async def execute(params: Any, context: Any) -> None:
            await agent.run(context.task_id, context.step)

        before, began = footprint(job), time.perf_counter()
        tasks = [await absurd.spawn("agent", {}) for _ in range(runs)]
        await absurd.work_batch(batch_size=1) if runs == 1 else await work_until_done(absurd, tasks)
        return before, began, time.perf_counter() - began


async def work_until_done(absurd: AsyncAbsurd, tasks: list[Any]) -> None:
    worker = asyncio.create_task(absurd.start_worker(concurrency=len(tasks)))
    for task in tasks:
        await absurd.await_task_result(task["task_id"])
    absurd.stop_worker()
    await worker


async def many_workflows(job: Job) -> Result:
    """One after the other the process claims each itself; many at once are for its worker."""
    async with opened(job) as absurd:

        @absurd.register_task("flow")
        async def flow(params: Any, context: Any) -> int:
            async def take(number: int) -> str:
                return text(number, job["bytes"])

            for number in range(job["steps"]):
                await context.step(f"take-{number}", partial(take, number))
            return job["steps"]

        async def execute(number: int) -> None:
            task = await absurd.spawn("flow", {})
            if job["parallel"] == 1:
                await absurd.work_batch()
            else:
                await absurd.await_task_result(task["task_id"])

        if job["parallel"] == 1:
            return await measure_workflows(job, execute)
        worker = asyncio.create_task(absurd.start_worker(concurrency=job["parallel"], poll_interval=POLL_SECONDS))
        result = await measure_workflows(job, execute)
        absurd.stop_worker()
        await worker
        return result


async def many_sleeps(job: Job) -> Result:
    """Claim the task again after each sleep, without the pause of a worker between."""
    times = SleepTimes()
    async with opened(job) as absurd:

        @absurd.register_task("sleeper")
        async def sleeper(params: Any, context: Any) -> None:
            for number in range(job["sleeps"]):
                times.reach(number)
                await context.sleep_for(f"sleep-{number}", SLEEP_SECONDS)
            times.reach(job["sleeps"])

        task = await absurd.spawn("sleeper", {}, max_attempts=10 * job["sleeps"])
        while not times.is_reached(job["sleeps"]):
            await absurd.work_batch()
        await absurd.await_task_result(task["task_id"])
    return times.describe()


if __name__ == "__main__":
    workloads = make_workloads(run_all) | {"w11": many_workflows, "w12": many_workflows, "w13": many_sleeps}
    protocol.main(workloads, packages=["absurd-sdk", "psycopg"], caveats=CAVEATS)
