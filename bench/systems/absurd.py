"""Absurd: an agent as a task, a step for each reply of the model and each result of a tool, on PostgreSQL.

A step of the agent lasts from one call of the model to the next: by then Absurd has committed both. The worker is its
asynchronous one, in the process that spawned the tasks. It has one connection, as its documentation has it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL
from bench.systems import protocol
from bench.systems.footprint import Footprint, footprint
from bench.systems.protocol import Job
from bench.systems.step_functions import BenchAgent, make_workloads

CAVEATS = {
    "all": "A reply is safe before its tool is called, so a step is two commits.",
    "w2": "One worker with one connection, and a concurrency of all runs.",
}


@asynccontextmanager
async def opened(job: Job, agent: BenchAgent) -> AsyncIterator[AsyncAbsurd]:
    url = job["postgres"] or ""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)
    absurd = AsyncAbsurd(url)
    await absurd.create_queue()

    @absurd.register_task("agent")
    async def execute(params: Any, context: Any) -> None:
        await agent.run(context.task_id, context.step)

    try:
        yield absurd
    finally:
        await absurd.close()


async def run_all(job: Job, agent: BenchAgent, runs: int) -> tuple[Footprint, float, float]:
    async with opened(job, agent) as absurd:
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


if __name__ == "__main__":
    protocol.main(make_workloads(run_all), packages=["absurd-sdk", "psycopg"], caveats=CAVEATS)
