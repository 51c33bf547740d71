"""Restate: its server, and an agent as a durable handler in Python, a `ctx.run` for each reply and each tool result.

A step of the agent lasts from one call of the model to the next: by then the server has acknowledged both.
"""

import asyncio
import itertools
import time

from bench.systems import protocol
from bench.systems.new_process import look_and_resume
from bench.systems.protocol import Job, Result
from bench.systems.restate.agent import watch
from bench.systems.restate.server import Server, serving
from bench.systems.restate.workflows import many_sleeps, many_workflows

CAVEATS = {
    "all": "A server beside the agent's process, with its default settings; a reply is safe before its tool is called.",
    "w13": "A sleep of less than a minute keeps its connection.",
    "w3": "Server and agent died together, so the time has the server's start in it; left alone, the server would "
    "outlive its agents. It hands a run its journal when it calls it, so loading has no figure of its own.",
}


async def one_run(job: Job) -> Result:
    async with serving(job) as server:
        disk, written = protocol.disk_bytes(job["folder"]), protocol.written_bytes(server.pid)
        began = time.perf_counter()
        await server.run(job["steps"], job["bytes"])
        disk, written = protocol.disk_bytes(job["folder"]) - disk, protocol.written_bytes(server.pid) - written
    (times,) = watch.times.values()
    times[0] = began
    return {
        "seconds": times[-1] - began,
        "step_seconds": watch.step_seconds(),
        "transcript_bytes": 2 * job["bytes"] * job["steps"],
        "disk_bytes": disk,
        "written_bytes": written,
    }


async def run_all(server: Server, job: Job, steps: int) -> None:
    await asyncio.gather(*(server.run(steps, job.get("bytes", 1000)) for _ in range(job["runs"])))


async def many_runs(job: Job) -> Result:
    async with serving(job) as server:
        began = time.perf_counter()
        await run_all(server, job, job["steps"])
        took = time.perf_counter() - began
    latencies = protocol.latencies(watch.step_seconds())
    return {"seconds": took, "runs": job["runs"], "steps": job["steps"], "latencies": latencies}


async def interrupted(job: Job) -> Result:
    phases = {"prepare": prepare, "look": look, "resume": resume}
    return await phases[job["phase"]](job) if job["phase"] in phases else look_and_resume("restate", job)


async def prepare(job: Job) -> Result:
    """Die, and the server with us, when every run has made its steps and asks the model for the next one."""
    all_wait = asyncio.Event()
    waiting = itertools.count(1)

    async def wait_for_death(number: int) -> None:
        if number == 2 * job["steps"]:
            if next(waiting) == job["runs"]:
                all_wait.set()
            await asyncio.Event().wait()

    watch.in_model = wait_for_death
    async with serving(job) as server:
        runs = asyncio.create_task(run_all(server, job, job["steps"] + 1))
        await all_wait.wait()
        runs.cancel()
        await server.stop()
        protocol.kill_self()


async def look(job: Job) -> Result:
    """Poll the server until it knows all runs. The agent's port does not answer yet."""
    server = Server(job)
    await server.until_unfinished(job["runs"])
    found = protocol.since_process_start()
    await server.stop()
    return {"find": found}


async def resume(job: Job) -> Result:
    """Resume each run for one step, to its end."""
    steps_done: list[float] = []
    all_done = asyncio.Event()

    async def note(number: int) -> None:
        if number == 2 * job["steps"] + 2:
            steps_done.append(protocol.since_process_start())
            if len(steps_done) == job["runs"]:
                all_done.set()

    watch.in_model = note
    async with serving(job) as server:
        await all_done.wait()
        await server.until_unfinished(0)
    return {"first": steps_done[0], "last": steps_done[-1]}


if __name__ == "__main__":
    protocol.main(
        {
            "w1": one_run,
            "w2": many_runs,
            "w3": interrupted,
            "w11": many_workflows,
            "w12": many_workflows,
            "w13": many_sleeps,
        },
        packages=["restate-sdk", "hypercorn"],
        caveats=CAVEATS,
    )
