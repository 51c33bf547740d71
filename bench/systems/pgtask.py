"""pgtask: an agent as a task, a step for each reply of the model and each result of a tool, on PostgreSQL.

A step of the agent lasts from one call of the model to the next: by then pgtask has committed both. The worker is in
the process that enqueued the tasks.
"""

import asyncio
import time
from urllib.parse import parse_qs, quote, urlsplit

from bench.systems import protocol
from bench.systems.footprint import Footprint, footprint
from bench.systems.protocol import Job
from bench.systems.step_functions import BenchAgent, make_workloads
from pgtask import Client, Task, TaskRegistry, Worker

CAVEATS = {
    "all": "A reply is safe before its tool is called, so a step is two commits.",
    "w2": "One worker with ten connections, which is its default, and a concurrency of all runs.",
}


def encode_host(url: str) -> str:
    """Return the URL with its Unix socket as the host, which is the only place where pgtask looks."""
    parts = urlsplit(url)
    socket = parse_qs(parts.query).get("host", [""])[0]
    user = parts.username or "postgres"
    return url if not socket else f"{parts.scheme}://{user}@{quote(socket, safe='')}{parts.path}"


async def run_all(job: Job, agent: BenchAgent, runs: int) -> tuple[Footprint, float, float]:
    url, registry = encode_host(job["postgres"] or ""), TaskRegistry()

    @registry.task("agent")
    async def execute(task: Task, payload: None) -> None:
        await agent.run(task.id, task.step)

    client = await Client.connect(url)
    await client.migrate()
    worker = Worker(url, registry, concurrency=runs)
    working = asyncio.create_task(worker.run())
    before, began = footprint(job), time.perf_counter()
    handles = await client.enqueue_many([execute.request(None) for _ in range(runs)])
    await asyncio.gather(*(handle.result() for handle in handles))
    took = time.perf_counter() - began
    worker.shutdown()
    await working
    return before, began, took


if __name__ == "__main__":
    protocol.main(make_workloads(run_all), packages=["pgtask"], caveats=CAVEATS)
