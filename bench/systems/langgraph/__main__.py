"""LangGraph: an agent of a model node and a tool node, checkpointed with `durability="sync"`.

One saver and one compiled graph for all runs of the process, as an application has them. A run is a thread. A step
lasts from one call of the model to the next: by then LangGraph has committed all of it. One run alone goes through its
synchronous interface, which is the faster one for it; many go through the asynchronous one.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.systems import protocol
from bench.systems.footprint import footprint
from bench.systems.langgraph.agent import Agent
from bench.systems.langgraph.savers import async_saver, saver, threads
from bench.systems.new_process import look_and_resume
from bench.systems.protocol import Job, Result
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

CAVEATS = {
    "all": "Two supersteps a step (model node, tool node), as its prebuilt agent has; a node for both would halve the "
    "commits, but a crash in a tool would ask the model again.",
    "w2": "One saver serves all runs and lets one of them write at a time.",
    "w3": "It has no recovery: our own SQL lists the threads, and every thread is taken for an interrupted one.",
}

#: Runs that our own recovery resumes at a time.
AT_ONCE = 16


def config(run: str) -> RunnableConfig:
    return {"configurable": {"thread_id": run}, "recursion_limit": 1_000_000}


def question() -> dict[str, Any]:
    return {"messages": [HumanMessage("go")]}


def one_run(job: Job) -> Result:
    agent = Agent(job["steps"], job["bytes"])
    with saver(job) as opened:
        graph = agent.graph(job, opened)
        before, began = footprint(job), time.perf_counter()
        graph.invoke(question(), config("run-0"), durability="sync")
        cost = footprint(job).since(before)
    (times,) = agent.times.values()
    times[0] = began
    return {
        "seconds": times[-1] - began,
        "step_seconds": agent.step_seconds(),
        "transcript_bytes": 2 * job["bytes"] * job["steps"],
        **cost,
    }


@asynccontextmanager
async def compiled(job: Job, agent: Agent) -> AsyncIterator[Any]:
    async with async_saver(job) as opened:
        yield agent.graph(job, opened)


async def run(graph: Any, name: str) -> None:
    await graph.ainvoke(question(), config(name), durability="sync")


async def run_all(graph: Any, job: Job) -> None:
    await asyncio.gather(*(run(graph, f"run-{number}") for number in range(job["runs"])))


async def many_runs(job: Job) -> Result:
    agent = Agent(job["steps"], job["bytes"])
    async with compiled(job, agent) as graph:
        began, used = time.perf_counter(), protocol.processor_seconds()
        await run_all(graph, job)
        took, used = time.perf_counter() - began, protocol.processor_seconds() - used
    latencies = protocol.latencies(agent.step_seconds())
    return {"seconds": took, "runs": job["runs"], "steps": job["steps"], "latencies": latencies, "cpu": used}


async def interrupted(job: Job) -> Result:
    phases = {"prepare": prepare, "look": look, "resume": resume}
    return await phases[job["phase"]](job) if job["phase"] in phases else look_and_resume("langgraph", job)


async def prepare(job: Job) -> Result:
    """Die when every run has made its steps and asks the model for the next one."""
    waiting = itertools.count(1)

    async def wait_for_death() -> None:
        if next(waiting) == job["runs"]:
            protocol.kill_self()
        await asyncio.Event().wait()

    async with compiled(job, Agent(job["steps"], job["bytes"], at_end=wait_for_death)) as graph:
        await run_all(graph, job)
    raise AssertionError("the last run should have killed this process")


async def look(job: Job) -> Result:
    async with compiled(job, Agent(None, job["bytes"])) as graph:
        names = await threads(graph.checkpointer)
        found = protocol.since_process_start()
        states = [await graph.aget_state(config(name)) for name in names]
        loaded = protocol.since_process_start()
    assert [len(state.values["messages"]) for state in states] == [1 + 2 * job["steps"]] * job["runs"]
    return {"find": found, "load": loaded}


async def resume(job: Job) -> Result:
    """Resume each run for one step, to its end."""
    steps_done: list[float] = []

    async def note() -> None:
        steps_done.append(protocol.since_process_start())

    places = asyncio.Semaphore(AT_ONCE)

    async def go_on(name: str) -> None:
        async with places:
            await graph.ainvoke(None, config(name), durability="sync")

    async with compiled(job, Agent(None, job["bytes"], at_end=note)) as graph:
        await asyncio.gather(*(go_on(name) for name in await threads(graph.checkpointer)))
    assert len(steps_done) == job["runs"]
    return {"first": steps_done[0], "last": steps_done[-1]}


if __name__ == "__main__":
    protocol.main(
        {"w1": one_run, "w2": many_runs, "w3": interrupted, "w10": many_runs},
        packages=["langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"],
        caveats=CAVEATS,
    )
