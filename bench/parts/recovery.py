"""How soon a new process resumes the runs of another: `python -m bench.parts.recovery`.

From the start of the process to the first step of the first resumed run, in a SQLite file with 1,000 and with 10,000
interrupted runs of ten steps each; beside it the same with one run, which is what starting a process costs, and how
long it takes to list them all, by the store and raw (apsw alone).
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import apsw

from holdfast import Agent, App, Reply, ToolCall, WorkerSettings, tool
from holdfast.checkpoint.store import iter_runs
from holdfast.core import Message, Model, ToolSchema
from holdfast.stores.sqlite import SqliteStore

STEPS = 10
ROUNDS = 5
TEXT = "what was found out in this step, at some length. " * 20


@tool(effect="pure")
async def look(place: int) -> str:
    return TEXT


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    done = sum(isinstance(message, Reply) for message in messages)
    if done == STEPS:
        return Reply(text="done")
    return Reply(text=TEXT, tool_calls=[ToolCall(id=f"c{done}", name="look", arguments={"place": done})])


def agent(ask: Model = model) -> Agent:
    return Agent(name="agent", model=ask, tools=[look])


async def first_step(path: str) -> None:
    """Print when the first resumed run asks its model; then be gone, so that all stay interrupted."""
    asked = asyncio.Event()

    async def told(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if not asked.is_set():
            print(time.time(), flush=True)
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async with App(
        [agent(told)], SqliteStore(path, durability="process"), worker=WorkerSettings(shutdown_timeout=timedelta(0))
    ):
        await asked.wait()


async def fill(path: Path, runs: int) -> None:
    """Runs that all were interrupted after the same ten steps."""
    one = agent()
    async with App([one], SqliteStore(path, durability="process"), worker=False) as app:
        await app.submit(one, "go", run_id="first")
        await app.recover()
        for begin in range(0, runs, 500):
            ids = range(begin, min(begin + 500, runs))
            await asyncio.gather(*(app.fork("first", STEPS, new_id=f"r{number}") for number in ids))


def started(path: Path) -> float:
    """Seconds from the start of a process to its first resumed step."""
    began = time.time()
    command = [sys.executable, "-m", "bench.parts.recovery", str(path)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(shown) - began


def raw_listing(path: Path) -> float:
    connection = apsw.Connection(str(path))
    began = time.perf_counter()
    for _ in connection.execute("SELECT * FROM runs"):
        pass
    took = time.perf_counter() - began
    connection.close()
    return took


async def listing(path: Path) -> float:
    store = SqliteStore(path)
    await store.open()
    began = time.perf_counter()
    async for _ in iter_runs(store):
        pass
    took = time.perf_counter() - began
    await store.close()
    return took


def main() -> None:
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder:
        for runs in (1, 1_000, 10_000):
            path = Path(folder) / f"{runs}.db"
            asyncio.run(fill(path, runs))
            took = [started(path) for _ in range(ROUNDS)]
            listed, raw = asyncio.run(listing(path)), raw_listing(path)
            print(
                f"{runs:6,} interrupted runs: first resumed step {statistics.median(took) * 1000:5.0f} ms after the "
                f"process was started (worst of {ROUNDS}: {max(took) * 1000:.0f}); "
                f"listing all {listed * 1000:.0f} ms, raw {raw * 1000:.0f} ms",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(first_step(sys.argv[1]))
    else:
        main()
