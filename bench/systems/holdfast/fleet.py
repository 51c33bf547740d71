"""Worker processes that take queued runs from one PostgreSQL."""

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from bench.systems.holdfast.agent import BenchAgent, make_app
from bench.systems.protocol import Job, Result

#: Runs that one worker executes at once.
CONCURRENCY = 128


async def fleet(job: Job) -> Result:
    if job.get("phase") == "worker":
        return await _work(job)
    agent = BenchAgent(job)
    async with make_app(job, agent) as app:
        ids = await asyncio.gather(*(app.submit(agent, "go") for _ in range(job["runs"])))
        workers = [await _start_workers(job) for _ in range(job["workers"])]
        before, began = _machine(), time.perf_counter()
        for worker in workers:
            _send(worker, b"go\n")
        await _wait_for_end(workers, job["runs"])
        took, after = time.perf_counter() - began, _machine()
        for run_id in ids:
            assert (await app.result(run_id)).output == "done"
    for worker in workers:
        await worker.communicate(b"enough\n")
        assert worker.returncode == 0
    busy, whole = (later - earlier for earlier, later in zip(before, after, strict=True))
    return {"seconds": took, "runs": job["runs"], "steps": job["steps"], "machine_busy": busy / whole}


async def _start_workers(job: Job) -> Process:
    """Start a worker that has opened the store and waits for a line on stdin."""
    command = [sys.executable, "-m", "bench.systems.holdfast", json.dumps({**job, "phase": "worker"})]
    worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    return worker


def _send(worker: Process, word: bytes) -> None:
    assert worker.stdin is not None
    worker.stdin.write(word)


async def _wait_for_end(workers: list[Process], runs: int) -> None:
    """Wait until the workers have written this many answers, each a dot."""
    left = runs
    enough = asyncio.Event()

    async def count(worker: Process) -> None:
        nonlocal left
        assert worker.stdout is not None
        while left > 0 and (dots := await worker.stdout.read(1024)):
            left -= len(dots)
        enough.set()

    counting = [asyncio.create_task(count(worker)) for worker in workers]
    await enough.wait()
    for task in counting:
        task.cancel()
    await asyncio.gather(*counting, return_exceptions=True)
    assert left == 0, "a worker ended before its time"


async def _work(job: Job) -> Result:
    async def at_end() -> None:
        os.write(1, b".")

    agent = BenchAgent(job, at_end=at_end)
    async with make_app(job, agent, concurrency=CONCURRENCY) as app:
        os.write(1, b"ready\n")
        await asyncio.to_thread(sys.stdin.readline)
        serving = asyncio.create_task(app.serve())
        await asyncio.to_thread(sys.stdin.readline)
    await serving
    return {}


def _machine() -> tuple[float, float]:
    """Return the busy ticks and all ticks of all processors."""
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    busy = user + nice + system + sum(rest[:2])
    return busy, busy + idle + waiting
