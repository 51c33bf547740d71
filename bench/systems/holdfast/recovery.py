"""Interrupted runs, listed and resumed in new processes."""

import asyncio

from bench.systems.holdfast.agent import BenchAgent, make_app, store_url
from bench.systems.new_process import look_and_resume
from bench.systems.protocol import Job, Result, kill_self, since_process_start

from holdfast import RunInfo
from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.store import iter_runs
from holdfast.core.execution.native_loop import get_loop
from holdfast.stores.from_url import store_from_url


async def interrupted(job: Job) -> Result:
    phases = {"prepare": _prepare, "look": _look, "resume": _resume}
    if job["phase"] in phases:
        return await phases[job["phase"]](job)
    return look_and_resume("holdfast", job)


async def _prepare(job: Job) -> Result:
    """Kill this process when every run has made its steps."""
    waiting = 0

    async def at_end() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == job["runs"]:
            kill_self()
        await asyncio.Event().wait()

    agent = BenchAgent(job, at_end=at_end)
    async with make_app(job, agent) as app:
        await asyncio.gather(*(app.run(agent, "go") for _ in range(job["runs"])))
    raise AssertionError("the process was not killed")


async def _look(job: Job) -> Result:
    """List all runs, then load them with their messages."""
    codec = get_loop(await BenchAgent(job).build(RunInfo(run_id="none", agent_name="bench"))).codec
    store = store_from_url(store_url(job))
    await store.open()
    found = [record.run_id async for record in iter_runs(store, RunFilter(interrupted=True))]
    listed = since_process_start()
    for run_id in found:
        state = decode_run(await store.load(run_id), codec).state
        assert len(state.history) == 2 * job["steps"] + 1
    loaded = since_process_start()
    await store.close()
    assert len(found) == job["runs"]
    return {"find": listed, "load": loaded}


async def _resume(job: Job) -> Result:
    """Resume all runs, as a worker does at start. A step is finished when the model is called for the next one."""
    made, all_made = list[float](), asyncio.Event()

    async def at_end() -> None:
        made.append(since_process_start())
        if len(made) == job["runs"]:
            all_made.set()

    async with make_app(job, BenchAgent({**job, "steps": job["steps"] + 1}, at_end=at_end), recover=True):
        await all_made.wait()
    return {"first": made[0], "last": made[-1]}
