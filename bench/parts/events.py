"""The cost of watchers: steps of a run per second on SQLite, without watchers and with, and the cost of drafts.

Each figure is a ratio to the same run in an App that cannot be watched, measured in turn with it.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast import Agent, App, Bounds, Reply, ToolCall, emit_text, tool
from holdfast.core import Message, ToolSchema
from holdfast.events import Event

ROOT = Path(__file__).parent.parent.parent

#: Steps of one run; runs and steps of each where many are watched; words of each streamed reply.
STEPS, RUNS, RUN_STEPS, WORDS = 400, 200, 4, 100

Measure = Callable[[App], Awaitable[float]]


@tool(effect="pure")
async def look(number: int) -> str:
    return "x" * 1000


def make_agent(name: str, steps: int, words: int = 0) -> Agent:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        for _ in range(words):
            await emit_text("word ")
        number = len(messages) // 2  # a reply and a result for each step
        calls = [ToolCall(id=str(number), name="look", arguments={"number": number})] if number < steps - 1 else []
        return Reply(text="x" * 1000, tool_calls=calls)

    return Agent(name=name, model=model, tools=[look], bounds=Bounds(max_steps=steps))


AGENTS = [make_agent("long", STEPS), make_agent("short", RUN_STEPS), make_agent("streaming", STEPS // 4, WORDS)]


async def measure_cpu(app: App) -> float:
    """Return the CPU time of one run. Other programs on the machine change it less than the time on the clock."""
    async with app:
        began = time.process_time()
        await app.run("long", "go")
        return time.process_time() - began


def compare_cpu(rounds: int) -> float:
    """Return the ratio of the CPU times of a run in memory that could be watched, and of one that could not."""
    watchable, limit = list[float](), list[float]()
    for _ in range(3 * rounds):
        watchable.append(asyncio.run(measure_cpu(App(AGENTS, "memory:"))))
        limit.append(asyncio.run(measure_cpu(make_unwatched("memory:"))))
    return min(watchable) / min(limit)


def make_unwatched(url: str) -> App:
    """Return an App whose runs no event stream observes: the limit."""
    app = App(AGENTS, url)
    app.ports = replace(app.ports, observers=())  # type: ignore[misc]
    return app


async def run_one(app: App, name: str = "long") -> float:
    began = time.perf_counter()
    await app.run(name, "go")
    return time.perf_counter() - began


async def run_streaming(app: App) -> float:
    return await run_one(app, "streaming")


async def run_many(app: App) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(app.run("short", "go") for _ in range(RUNS)))
    return time.perf_counter() - began


async def run_watched(app: App, watchers: int) -> float:
    """Execute one run while many watch it."""
    began = time.perf_counter()
    run_id = await app.submit("long", "go")
    async with watching(app, [run_id] * watchers):
        await app.result(run_id)
        return time.perf_counter() - began


@asynccontextmanager
async def watching(app: App, run_ids: Sequence[str]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(_drain(app, run_id)) for run_id in run_ids]
    yield
    await asyncio.gather(*tasks)


async def _drain(app: App, run_id: str) -> None:
    await _drain_stream(app.events(run_id))


async def run_watched_elsewhere(app: App, watchers: int) -> float:
    """Execute one run while many watch it from another process."""
    url = str(app._options["store"])
    run_id = await app.submit("long", "go", not_before=datetime.now(UTC) + timedelta(seconds=3))
    command = (sys.executable, "-m", "bench.parts.events", "--watch", url, run_id, str(watchers))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()  # they watch
    await _wait_until_running(app, run_id)
    began = time.perf_counter()
    await app.result(run_id)
    took = time.perf_counter() - began
    await process.wait()
    return took


async def _wait_until_running(app: App, run_id: str) -> None:
    async for event in app.watch():
        if event.run_id == run_id and event.status != "queued":
            return


async def run_later(app: App) -> float:
    run_id = await app.submit("long", "go", not_before=datetime.now(UTC) + timedelta(seconds=1))
    await _wait_until_running(app, run_id)
    began = time.perf_counter()
    await app.result(run_id)
    return time.perf_counter() - began


async def watch_elsewhere(url: str, run_id: str, watchers: int) -> None:
    """Watch a run many times: the other process of `run_watched_elsewhere`."""
    async with App([], url, worker=False) as app:
        streams = [app.events(run_id) for _ in range(watchers)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        print("ready", flush=True)
        await asyncio.gather(*(_drain_stream(stream) for stream in streams))


async def _drain_stream(stream: AsyncIterator[Event]) -> None:
    async for _ in stream:
        pass


async def run_many_watched(app: App) -> float:
    """Execute many runs while one watcher follows the status of all."""

    async def follow() -> None:
        async for _ in app.watch():
            pass

    watcher = asyncio.create_task(follow())
    try:
        return await run_many(app)
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)


async def run_submitted(app: App) -> float:
    began = time.perf_counter()
    await app.result(await app.submit("long", "go"))
    return time.perf_counter() - began


#: Name, the measured work, and the work that it is compared with.
PARTS: list[tuple[str, Measure, Measure]] = [
    ("one run, not watched", run_one, run_one),
    ("many runs, not watched", run_many, run_many),
    ("a streaming run, not watched", run_streaming, run_streaming),
    ("one run, 1 watcher", lambda app: run_watched(app, 1), run_submitted),
    ("one run, 1,000 watchers", lambda app: run_watched(app, 1_000), run_submitted),
    ("one run, 1,000 watchers elsewhere", lambda app: run_watched_elsewhere(app, 1_000), run_later),
    (f"{RUNS} runs, one watcher of all", run_many_watched, run_many),
]


async def compare(measured: Measure, limit: Measure, rounds: int) -> list[float]:
    """Return the ratios of both times, each round in a new store."""
    ratios = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
            async with App(AGENTS, f"sqlite:{folder}/a.db") as app, make_unwatched(f"sqlite:{folder}/b.db") as other:
                if number % 2:
                    ours, theirs = await measured(app), await limit(other)
                else:
                    theirs, ours = await limit(other), await measured(app)
        ratios.append(ours / theirs)
    return ratios


def main() -> None:
    """Print the median ratio of each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--watch", nargs=3, metavar=("URL", "RUN", "WATCHERS"), help="for the benchmark itself")
    arguments = parser.parse_args()
    if arguments.watch is not None:
        url, run_id, watchers = arguments.watch
        asyncio.run(watch_elsewhere(url, run_id, int(watchers)))
        return
    rounds = arguments.rounds
    print(f"{'CPU of one run, not watched':<34} {compare_cpu(rounds):5.2f}", flush=True)
    for name, measured, limit in PARTS:
        ratios = asyncio.run(compare(measured, limit, rounds))
        print(f"{name:<34} {statistics.median(ratios):5.2f}   ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
