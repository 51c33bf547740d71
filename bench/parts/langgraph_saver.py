"""`HoldfastSaver` beside LangGraph's own savers, with the same durability: `python -m bench.parts.langgraph_saver`.

Needs `langgraph-checkpoint-sqlite` and `langgraph-checkpoint-postgres`. Each step is a node that appends a message of
2 KB. "puts" calls the savers without a graph: the writes of a task, then a checkpoint, as LangGraph does in a step.
"graph" runs a compiled graph with `durability="sync"`. "at most" and "at least" are LangGraph's `InMemorySaver`, which
keeps nothing on disk: what LangGraph itself costs, and no saver can be faster. Processor time is that of this process,
in milliseconds for each step: a busy machine changes it less than steps a second. Look at the ratios.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import aiosqlite
import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from tests.postgres_server import fresh_database

from holdfast.adapters.langgraph import HoldfastSaver

THREADS = 128
STEPS = 10
ROUNDS = 3
LONG_RUN = 1_000
TEXT = "x" * 2048

Saver = BaseCheckpointSaver[Any]
Measurement = Callable[[Saver], Awaitable[float]]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


# -- savers ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_saver(name: str, url: str) -> AsyncIterator[Saver]:
    """Open a saver that commits to the disk; the settings are those of LangGraph's documentation."""
    if name == "memory":
        yield InMemorySaver()
    elif name == "holdfast":
        async with HoldfastSaver.from_url(url) as saver:
            yield saver
    elif url.startswith("sqlite:"):
        async with aiosqlite.connect(url.removeprefix("sqlite:")) as connection:
            await connection.execute("PRAGMA synchronous=FULL")  # WAL is what its own setup asks for
            sqlite = AsyncSqliteSaver(connection)
            await sqlite.setup()
            yield sqlite
    else:
        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(url, min_size=4, max_size=16, kwargs=settings) as pool:
            postgres = AsyncPostgresSaver(pool)
            await postgres.setup()
            yield postgres


# -- what is measured --------------------------------------------------------------------------------------------------


async def put_steps(saver: Saver, thread: str, steps: int) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    version, messages = None, list[AnyMessage]()
    for step in range(steps):
        version = saver.get_next_version(version, None)
        message = AIMessage(TEXT, id=f"{thread} {step}")
        messages = [*messages, message]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {"messages": messages}, {"messages": version}
        config = await saver.aput(config, checkpoint, {"source": "loop", "step": step}, {"messages": version})
        await saver.aput_writes(config, [("messages", [message])], f"{step:08}-0000-0000-0000-000000000000")


async def measure_puts(saver: Saver) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(put_steps(saver, f"thread-{number}", STEPS) for number in range(THREADS)))
    return THREADS * STEPS / (time.perf_counter() - began)


async def run_graph(saver: Saver, threads: int, steps: int) -> None:
    async def answer(state: Chat) -> Chat:
        return {"messages": [AIMessage(TEXT)]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", lambda state: END if len(state["messages"]) > steps else "answer")
    graph = builder.compile(checkpointer=saver)

    async def run(number: int) -> None:
        config: RunnableConfig = {"configurable": {"thread_id": f"thread-{number}"}, "recursion_limit": 2 * LONG_RUN}
        await graph.ainvoke({"messages": [HumanMessage("go")]}, config, durability="sync")

    await asyncio.gather(*(run(number) for number in range(threads)))


async def measure_graph(saver: Saver) -> float:
    began = time.perf_counter()
    await run_graph(saver, THREADS, STEPS)
    return THREADS * STEPS / (time.perf_counter() - began)


async def measure_disk(saver: Saver) -> float:
    """Return the seconds of one long run; its size is read after the saver is closed."""
    began = time.perf_counter()
    await run_graph(saver, 1, LONG_RUN)
    return time.perf_counter() - began


def count_bytes(url: str) -> int:
    if url.startswith("sqlite:"):
        path = Path(url.removeprefix("sqlite:"))
        return path.stat().st_size if path.exists() else 0
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


# -- the report --------------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    #: Steps a second; of the long run, its seconds.
    figure: float
    #: Processor time of this process.
    seconds: float
    #: What it left in an empty database.
    size: int


async def measure(name: str, database: str, measurement: Measurement) -> Figures:
    with ExitStack() as stack:
        if database == "postgres":
            url = stack.enter_context(fresh_database())
        else:
            url = f"sqlite:{stack.enter_context(tempfile.TemporaryDirectory())}/graph.db"
        empty = count_bytes(url)
        async with open_saver(name, url) as saver:
            began = time.process_time()
            figure = await measurement(saver)
            seconds = time.process_time() - began
        return Figures(figure, seconds, count_bytes(url) - empty)


async def report(database: str) -> None:
    for what, measurement in (("puts", measure_puts), ("graph", measure_graph)):
        best: dict[str, Figures] = {}
        for _ in range(ROUNDS):  # they take turns, so that the noise of the machine meets all
            for name in ("holdfast", "langgraph", "memory"):
                measured = await measure(name, database, measurement)
                best[name] = max(measured, best.get(name, measured))
        ours, theirs, floor = best["holdfast"], best["langgraph"], best["memory"]
        compared = f"{ours.figure / theirs.figure:.1f} times, at most {floor.figure / theirs.figure:.1f} times"
        cpu = f"processor time {ours.seconds / theirs.seconds:.2f}, at least {floor.seconds / theirs.seconds:.2f}"
        shown = ", ".join(
            f"{name} {figures.figure:,.0f}/s {figures.seconds / THREADS / STEPS * 1e3:.2f} ms"
            for name, figures in best.items()
        )
        print(f"{database:9} {what:6} {THREADS} threads  {compared}, {cpu}  ({shown})", flush=True)
    sizes = {name: await measure(name, database, measure_disk) for name in ("holdfast", "langgraph")}
    ratio = sizes["holdfast"].size / sizes["langgraph"].size
    shown = ", ".join(f"{name} {each.size / 1e6:,.1f} MB in {each.figure:.1f} s" for name, each in sizes.items())
    print(f"{database:9} disk   {LONG_RUN} steps    {ratio:.3f} of its bytes  ({shown})", flush=True)


async def main() -> None:
    for database in sys.argv[1:] or ("sqlite", "postgres"):
        await report(database)


if __name__ == "__main__":
    asyncio.run(main())
