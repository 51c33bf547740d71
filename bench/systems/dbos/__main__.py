"""DBOS: an agent as a workflow, a step for each reply of the model and each result of a tool.

A step of the agent lasts from one call of the model to the next: by then DBOS has committed both. One run alone goes
through its synchronous interface, which is the faster one for it; many go through the asynchronous one.
"""

import asyncio
import itertools
import threading
import time

from bench.systems import protocol
from bench.systems.dbos.agent import agent, plain_agent, watch
from bench.systems.dbos.system import database_url, launched
from bench.systems.dbos.workflows import many_sleeps, many_workflows
from bench.systems.footprint import footprint
from bench.systems.new_process import look_and_resume
from bench.systems.protocol import Job, Result
from dbos import DBOSClient

CAVEATS = {
    "all": "SQLite runs in WAL mode, which is not its default; a reply is safe before its tool is called, so a step is "
    "two commits.",
    "w2": "All runs are started at once, without a queue; its timeout for a connection is raised so that none fails.",
    "w3": "Its own recovery, which runs each workflow again from the start with the recorded results.",
    "w13": "A sleep stays in its process.",
    "w5": "pydantic-ai's own integration (DBOSDurability); the tool is a DBOS step, too.",
}


def one_run(job: Job) -> Result:
    with launched(job):
        before, began = footprint(job), time.perf_counter()
        plain_agent(job["steps"], job["bytes"])
        cost = footprint(job).since(before)
    (times,) = watch.times.values()
    times[0] = began
    return {
        "seconds": times[-1] - began,
        "step_seconds": watch.step_seconds(),
        "transcript_bytes": 2 * job["bytes"] * job["steps"],
        **cost,
    }


async def many_runs(job: Job) -> Result:
    with launched(job):
        began = time.perf_counter()
        await asyncio.gather(*(agent(job["steps"], job["bytes"]) for _ in range(job["runs"])))
        took = time.perf_counter() - began
    latencies = protocol.latencies(watch.step_seconds())
    return {"seconds": took, "runs": job["runs"], "steps": job["steps"], "latencies": latencies}


def interrupted(job: Job) -> Result:
    if job["phase"] == "prepare":
        return asyncio.run(prepare(job))
    phases = {"look": look, "resume": resume}
    return phases[job["phase"]](job) if job["phase"] in phases else look_and_resume("dbos", job)


async def prepare(job: Job) -> Result:
    """Die when every run has made its steps and asks the model for the next one."""
    waiting = itertools.count(1)

    async def wait_for_death(number: int) -> None:
        if number == 2 * job["steps"]:
            if next(waiting) == job["runs"]:
                protocol.kill_self()
            await asyncio.Event().wait()

    watch.in_model = wait_for_death
    with launched(job):
        await asyncio.gather(*(agent(job["steps"] + 1, job["bytes"]) for _ in range(job["runs"])))
    raise AssertionError("the last run should have killed this process")


def look(job: Job) -> Result:
    client = DBOSClient(system_database_url=database_url(job))
    runs = client.list_workflows(status="PENDING")
    found = protocol.since_process_start()
    steps = [client.list_workflow_steps(run.workflow_id) for run in runs]
    loaded = protocol.since_process_start()
    client.destroy()
    assert [len(each) for each in steps] == [2 * job["steps"]] * job["runs"]
    return {"find": found, "load": loaded}


def resume(job: Job) -> Result:
    """Resume each run for one step, to its end."""
    steps_done: list[float] = []
    all_done = threading.Event()

    async def note(number: int) -> None:
        if number == 2 * job["steps"] + 2:
            steps_done.append(protocol.since_process_start())
            if len(steps_done) == job["runs"]:
                all_done.set()

    watch.in_model = note
    with launched(job):
        all_done.wait()
    return {"first": steps_done[0], "last": steps_done[-1]}


async def pydantic_ai_agent(job: Job) -> Result:
    from bench.systems.dbos.pydantic_ai import one_run  # a second of imports that no other workload should pay for

    return await one_run(job)


if __name__ == "__main__":
    protocol.main(
        {
            "w1": one_run,
            "w2": many_runs,
            "w3": interrupted,
            "w5": pydantic_ai_agent,
            "w11": many_workflows,
            "w12": many_workflows,
            "w13": many_sleeps,
        },
        packages=["dbos", "sqlalchemy", "pydantic-ai-slim"],
        caveats=CAVEATS,
    )
