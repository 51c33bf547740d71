"""LangGraph: an agent of a model node and a tool node, checkpointed with `durability="sync"`.

One saver and one compiled graph for all runs of the process, as an application has them. A run is a thread. A step
begins when the model is called and ends when it is called again: by then LangGraph has committed all of it.
"""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import aiosqlite
from bench.systems import protocol
from bench.systems.footprint import footprint, uses_postgres
from bench.systems.protocol import Job, Result, text
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.types import Send
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

DOUBTS = {
    "all": "Two supersteps a step (model node, tool node), as its prebuilt agent has; a node for both would halve the "
    "commits, but a crash in a tool would ask the model again.",
    "w2": "One saver serves all runs and lets one of them write at a time.",
    "w3": "It has no recovery: our own SQL lists the threads, and we take every thread for an interrupted one; "
    "load is measured after all have been resumed, and counted from when they were found.",
    "w4": "Each tool call is a task of its own (Send), so that each result is durable as it comes.",
    "w6": "The runs wait in memory; `interrupt()` would wait for nothing, but then nothing of its own wakes them.",
}

#: Runs that our own recovery resumes at a time.
AT_ONCE = 16


class Messages(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


async def nothing() -> None:
    """A moment that takes no time."""


class Agent:
    """Takes so many steps and answers; each step asks for so many tool calls.

    Args:
        steps: None to stop after the first whole step in this process.
        in_tool: awaited by every tool.
        at_end: awaited before the answer.
    """

    def __init__(
        self,
        steps: int | None,
        size: int,
        calls: int = 1,
        in_tool: Callable[[], Awaitable[None]] = nothing,
        at_end: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        self._steps, self._size, self._calls = steps, size, calls
        self._in_tool, self._at_end = in_tool, at_end
        #: When the model was called, by run.
        self.times: dict[str, list[float]] = defaultdict(list)

    async def model(self, state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        times = self.times[config["configurable"]["thread_id"]]
        times.append(time.perf_counter())
        messages_per_step = 1 + self._calls
        first = (len(state["messages"]) - 1) // messages_per_step * messages_per_step
        if len(times) == 2 if self._steps is None else first == self._steps * messages_per_step:
            await self._at_end()
            return {"messages": [AIMessage("done")]}
        calls = [{"name": "look", "args": {"number": first + 1 + call}, "id": str(call)} for call in range(self._calls)]
        return {"messages": [AIMessage(text(first, self._size), tool_calls=calls)]}

    async def tool(self, call: dict[str, Any]) -> dict[str, Any]:
        await self._in_tool()
        return {"messages": [ToolMessage(text(call["args"]["number"], self._size), tool_call_id=call["id"])]}

    async def only_tool(self, state: dict[str, Any]) -> dict[str, Any]:
        return await self.tool(state["messages"][-1].tool_calls[0])

    def after_model(self, state: dict[str, Any]) -> Any:
        calls = state["messages"][-1].tool_calls
        if not calls:
            return END
        return "tool" if self._calls == 1 else [Send("tool", call) for call in calls]

    def graph(self, state: type, saver: Any) -> Any:
        builder: Any = StateGraph(state)
        builder.add_node("model", self.model)
        builder.add_node("tool", self.only_tool if self._calls == 1 else self.tool)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", self.after_model, ["tool", END])
        builder.add_edge("tool", "model")
        return builder.compile(checkpointer=saver)

    def step_seconds(self) -> list[float]:
        return [later - earlier for times in self.times.values() for earlier, later in itertools.pairwise(times)]


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[Any]:
    """The saver of the job's variant."""
    if not uses_postgres(job):
        async with aiosqlite.connect(Path(job["folder"]) / "checkpoints.db") as connection:
            await connection.execute("PRAGMA synchronous=FULL")  # WAL is what its own setup asks for
            sqlite = AsyncSqliteSaver(connection)
            await sqlite.setup()
            yield sqlite
        return
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}  # as its documentation has them
    async with AsyncConnectionPool(job["postgres"] or "", min_size=4, max_size=16, kwargs=settings) as pool:
        postgres = AsyncPostgresSaver(pool)
        await postgres.setup()
        yield postgres


@asynccontextmanager
async def compiled(job: Job, agent: Agent) -> AsyncIterator[Any]:
    async with opened(job) as saver:
        yield agent.graph(DeltaMessages if job["variant"].endswith("-delta") else Messages, saver)


async def run(graph: Any, name: str, question: str | None = "go") -> None:
    """Drive a run to its end. Without a question, one that was interrupted."""
    config = {"configurable": {"thread_id": name}, "recursion_limit": 1_000_000}
    given = None if question is None else {"messages": [HumanMessage(question)]}
    await graph.ainvoke(given, config, durability="sync")


async def one_run(job: Job, calls: int = 1) -> Result:
    agent = Agent(job["steps"], job["bytes"], calls)
    async with compiled(job, agent) as graph:
        before, began = footprint(job), time.perf_counter()
        await run(graph, "run-0")
        took, after = time.perf_counter() - began, footprint(job)
    return {
        "seconds": took,
        "step_seconds": agent.step_seconds(),
        **after.since(before),
        "transcript_bytes": (1 + calls) * job["bytes"] * job["steps"],
    }


async def parallel_tools(job: Job) -> Result:
    return await one_run(job, calls=3)


async def many_runs(job: Job) -> Result:
    agent = Agent(job["steps"], job["bytes"])
    async with compiled(job, agent) as graph:
        began = time.perf_counter()
        await asyncio.gather(*(run(graph, f"run-{number}") for number in range(job["runs"])))
        took = time.perf_counter() - began
    return {
        "seconds": took,
        "runs": job["runs"],
        "steps": job["steps"],
        "latencies": protocol.latencies(agent.step_seconds()),
    }


async def recovery(job: Job) -> Result:
    return await (prepare(job) if job["phase"] == "prepare" else recover(job))


async def prepare(job: Job) -> Result:
    """Die when every run has made its steps and asks the model for the next one."""
    waiting = itertools.count(1)

    async def wait_for_death() -> None:
        if next(waiting) == job["runs"]:
            protocol.kill_self()
        await asyncio.Event().wait()

    agent = Agent(job["steps"], job.get("bytes", 1000), at_end=wait_for_death)
    async with compiled(job, agent) as graph:
        await asyncio.gather(*(run(graph, f"run-{number}") for number in range(job["runs"])))
    raise AssertionError("the last run should have killed this process")


async def recover(job: Job) -> Result:
    """Each run goes on for one step, and ends."""
    steps_done: list[float] = []

    async def note() -> None:
        steps_done.append(protocol.since_process_start())

    agent = Agent(None, job.get("bytes", 1000), at_end=note)
    places = asyncio.Semaphore(AT_ONCE)

    async def resume(name: str) -> None:
        async with places:
            await run(graph, name, question=None)

    async with compiled(job, agent) as graph:
        names = await threads(graph.checkpointer)
        found = protocol.since_process_start()
        await asyncio.gather(*(resume(name) for name in names))
        began = time.perf_counter()
        for name in names:
            await graph.aget_state({"configurable": {"thread_id": name}})
        loaded = found + time.perf_counter() - began
    return {"find": found, "load": loaded, "first": min(steps_done), "last": max(steps_done), "runs": len(steps_done)}


async def threads(saver: Any) -> list[str]:
    if isinstance(saver, AsyncPostgresSaver):
        async with saver.conn.connection() as connection:
            cursor = await connection.execute("select distinct thread_id from checkpoints")
            return [row["thread_id"] for row in await cursor.fetchall()]
    rows = await saver.conn.execute_fetchall("select distinct thread_id from checkpoints")
    return [row[0] for row in rows]


async def waiting_runs(job: Job) -> Result:
    """What it costs that all runs wait in a tool."""
    all_wait, over = asyncio.Event(), asyncio.Event()
    waiting = itertools.count(1)

    async def wait() -> None:
        if next(waiting) == job["runs"]:
            all_wait.set()
        await over.wait()

    async with compiled(job, Agent(1, 1000, in_tool=wait)) as graph:
        memory = protocol.resident_bytes()
        runs = [asyncio.create_task(run(graph, f"run-{number}")) for number in range(job["runs"])]
        await all_wait.wait()
        before, used = footprint(job), protocol.processor_seconds()
        await asyncio.sleep(job["seconds"])
        used, after = protocol.processor_seconds() - used, footprint(job)
        memory = protocol.resident_bytes() - memory
        over.set()
        await asyncio.gather(*runs)
    return {
        "cpu_share": used / job["seconds"],
        "memory_bytes": memory,
        "written_bytes": after.since(before)["written_bytes"],
    }


if __name__ == "__main__":
    protocol.main(
        {"w1": one_run, "w2": many_runs, "w3": recovery, "w4": parallel_tools, "w6": waiting_runs},
        packages=["langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"],
        doubts=DOUBTS,
    )
