"""Interrupted runs in a new process.

Looking at them and going on with them are two processes, because either is counted from its start.
"""

import asyncio
import json
import subprocess
import sys

from bench.systems.holdfast.subject import Subject, make_app, store_url
from bench.systems.protocol import Job, Result, kill_self, since_process_start

from holdfast import RunInfo
from holdfast.checkpoint.codec import read_checkpoint
from holdfast.checkpoint.record import RunFilter
from holdfast.core.execution.native import get_loop
from holdfast.stores.url import store_from_url


async def interrupted(job: Job) -> Result:
    phases = {"prepare": _prepare, "look": _look, "resume": _resume}
    if job["phase"] in phases:
        return await phases[job["phase"]](job)
    looked, resumed = (_in_a_new_process({**job, "phase": phase}) for phase in ("look", "resume"))
    return {name: looked[name] for name in ("find", "load")} | {name: resumed[name] for name in ("first", "last")}


def _in_a_new_process(job: Job) -> Result:
    command = [sys.executable, "-m", "bench.systems.holdfast", json.dumps(job)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(1)  # it has said why
    result: Result = json.loads(done.stdout)
    return result


async def _prepare(job: Job) -> Result:
    """Every run makes its steps; when all are there, this process dies."""
    waiting = 0

    async def at_end() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == job["runs"]:
            kill_self()
        await asyncio.Event().wait()

    subject = Subject(job, at_end=at_end)
    async with make_app(job, subject) as app:
        await asyncio.gather(*(app.run(subject, "go") for _ in range(job["runs"])))
    raise AssertionError("the process was not killed")


async def _look(job: Job) -> Result:
    """List all, then read all, their messages included."""
    codec = get_loop(await Subject(job).build(RunInfo(run_id="none", agent_name="bench"))).codec
    store = store_from_url(store_url(job))
    await store.open()
    found = [record.run_id async for record in store.list_runs(RunFilter(interrupted=True))]
    listed = since_process_start()
    for run_id in found:
        state = read_checkpoint(await store.load(run_id), codec).state
        assert len(state.history) == 2 * job["steps"] + 1
    loaded = since_process_start()
    await store.close()
    assert len(found) == job["runs"]
    return {"find": listed, "load": loaded}


async def _resume(job: Job) -> Result:
    """What a worker does at its start. A step has been made when the model is asked for the one after it."""
    made, all_made = list[float](), asyncio.Event()

    async def at_end() -> None:
        made.append(since_process_start())
        if len(made) == job["runs"]:
            all_made.set()

    async with make_app(job, Subject({**job, "steps": job["steps"] + 1}, at_end=at_end), recover=True):
        await all_made.wait()
    return {"first": made[0], "last": made[-1]}
