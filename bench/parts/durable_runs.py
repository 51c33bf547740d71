"""The whole kernel, from the model's reply to the disk, beside the raw limits: `python -m bench.parts.durable_runs`.

A step is a reply and a tool result of one kilobyte each. With a `once` tool each is on the disk before the run goes on;
with a `pure` one they share a commit. Raw and kernel take turns.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench.parts import postgres_store as postgres
from bench.parts import sqlite_store as sqlite
from tests.postgres_server import EmbeddedServer, fresh_database

from holdfast import (
    Agent,
    Bounds,
    Checkpoints,
    Executor,
    Message,
    Ports,
    Reply,
    ToolCall,
    ToolSchema,
    store_from_url,
    tool,
)

TEXT = "x" * 1000


@tool(effect="once")
async def once(number: int) -> str:
    return TEXT


@tool(effect="pure")
async def pure(number: int) -> str:
    return TEXT


def agent(effect: str, steps: int, times: list[float] | None = None) -> Agent:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if times is not None:
            times.append(time.perf_counter())
        done = len(messages) // 2
        if done == steps:
            return Reply(text="done")
        call = ToolCall(id=str(done), name=effect, arguments={"number": done})
        return Reply(text=TEXT, tool_calls=(call,))

    return Agent(name="bench", model=model, tools=[once, pure], bounds=Bounds(max_iterations=steps + 1))


async def driven(url: str, made: Agent, runs: int) -> float:
    """Seconds for so many runs at once."""
    checkpoints = Checkpoints(store_from_url(url))
    await checkpoints.open()
    executor = Executor(Ports(checkpoints=checkpoints))
    began = time.perf_counter()
    await asyncio.gather(*(executor.run(made, "go", run_id=f"run-{number}") for number in range(runs)))
    took = time.perf_counter() - began
    await executor.shutdown()
    return took


async def one_run(steps: int = 2000) -> None:
    """One run with a `once` tool, beside raw SQLite with two commits a step."""
    with sqlite.folder() as place:
        times: list[float] = []
        took = await driven(f"sqlite:{place / 'runs.db'}", agent("once", steps, times), 1) / steps
        connection = sqlite.raw_database(place / "raw.db", 1)
        began = time.perf_counter()
        for seq in range(2 * steps):
            connection.execute("BEGIN IMMEDIATE")
            sqlite.raw_write(connection, 0, seq)
            connection.execute("COMMIT")
        raw = (time.perf_counter() - began) / steps
        connection.close()
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    first, last = (statistics.quantiles(hundred, n=4)[0] for hundred in (gaps[:100], gaps[-100:]))
    sqlite.say(f"SQLite, one run, {steps} steps: raw, two commits a step", f"{raw * 1e3:.3f} ms/step")
    sqlite.say("  kernel, once tool", f"{took * 1e3:.3f} ms/step {took / raw:.2f}x", "at most 1.5x")
    sqlite.say("  kernel, last hundred to first hundred", f"{last / first:.2f}x", "at most 1.2x")


async def together(write: Callable[[int, int], Awaitable[None]], runs: int, steps: int) -> float:
    async def one(run: int) -> None:
        for seq in range(steps):
            await write(run, seq)

    began = time.perf_counter()
    await asyncio.gather(*(one(run) for run in range(runs)))
    return runs * steps / (time.perf_counter() - began)


async def raw_sqlite(place: Path, runs: int, steps: int) -> float:
    connection = sqlite.raw_database(place / "raw.db", runs)
    raw = sqlite.RawGroupCommit(connection)
    rate = await together(raw.write, runs, steps)
    raw.stop()
    connection.close()
    return rate


async def raw_postgres(url: str, runs: int, steps: int) -> float:
    connection = postgres.raw_database(url, runs)
    raw = postgres.RawGroupCommit(connection, postgres.raw_by_arrays)
    rate = await together(raw.write, runs, steps)
    raw.stop()
    connection.close()
    return rate


async def many_runs(name: str, server: EmbeddedServer | None, runs: int, steps: int = 20, turns: int = 5) -> None:
    """Many runs at once, beside raw group commit, one commit a step."""
    raw: list[float] = []
    rates: dict[str, list[float]] = {"pure": [], "once": []}
    for _ in range(turns):
        with sqlite.folder() as place:
            if server is None:
                raw.append(await raw_sqlite(place, runs, steps))
                for effect, found in rates.items():
                    took = await driven(f"sqlite:{place / effect}.db", agent(effect, steps), runs)
                    found.append(runs * steps / took)
                continue
        with fresh_database(server) as url:
            raw.append(await raw_postgres(url, runs, steps))
            for effect, found in rates.items():
                found.append(runs * steps / await driven(url, agent(effect, steps), runs))
    best = statistics.median(raw)
    sqlite.say(f"{name}, {runs} runs at once: raw group commit", f"{best:,.0f} steps/s")
    for effect, found in rates.items():
        rate = statistics.median(found)
        commits = "one commit a step" if effect == "pure" else "two commits a step"
        sqlite.say(f"  kernel, {effect} tool, {commits}", f"{rate:,.0f} steps/s {rate / best:.0%}", "at least 50%")


async def main() -> None:
    await one_run()
    server = EmbeddedServer()
    for runs in (128, 1000):
        await many_runs("SQLite", None, runs)
        await many_runs("PostgreSQL", server, runs)


if __name__ == "__main__":
    asyncio.run(main())
