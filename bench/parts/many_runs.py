"""Where the time of many runs at once goes: raw group commit, the least loop around it, our kernel, all of holdfast.

The least loop promises nothing: no claim, no fence, no bounds, no checks, no usage; it asks the model, calls the tool,
encodes both messages and commits them with those of all others. What it takes beyond raw, any agent loop takes. The
kernel is measured without a store. Each as a share of the raw limit of the same round.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from bench.systems.holdfast.agent import BenchAgent, Stamps, store_url
from bench.systems.protocol import Job
from bench.systems.raw.__main__ import many_runs as raw
from bench.systems.raw.group_commit import GroupCommit
from bench.systems.raw.log import open_log
from bench.systems.raw.row import Row

from holdfast import App, Reply, ToolResult, User
from holdfast.core import Message

ROOT = Path(__file__).parent.parent.parent

_encode = msgspec.json.Encoder().encode


async def least_loop(job: Job) -> float:
    agent, log = BenchAgent(job), open_log({**job, "variant": "sqlite-group-1"})
    group = GroupCommit(log)

    async def one(run: int) -> None:
        model, history = Stamps(agent), list[Message]([User("go")])
        await group.append([Row(run, 0, _encode(history[0]))])
        while (reply := await model(history, ())).tool_calls:
            history += await _step(agent, reply)
            body = b"\n".join(map(_encode, history[-1 - len(reply.tool_calls) :]))
            await group.append([Row(run, len(history), body)])

    took = await _timed(asyncio.gather(*(one(run) for run in range(job["runs"]))))
    group.stop()
    log.close()
    return took


async def _step(agent: BenchAgent, reply: Reply) -> list[Message]:
    results = [
        ToolResult(call_id=call.id, tool=call.name, content=await agent.look(**call.arguments))
        for call in reply.tool_calls
    ]
    return [reply, *results]


async def raw_limit(job: Job) -> float:
    seconds: float = (await raw({**job, "variant": "sqlite-group-1"}))["seconds"]
    return seconds


async def kernel(job: Job) -> float:
    return await _ours(job, None)


async def holdfast(job: Job) -> float:
    return await _ours(job, store_url(job))


async def _ours(job: Job, store: str | None) -> float:
    agent = BenchAgent(job)
    async with App([agent], store, worker=False) as app:
        return await _timed(asyncio.gather(*(app.run(agent, "go") for _ in range(job["runs"]))))


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


MEASURED: dict[str, Callable[[Job], Awaitable[float]]] = {
    "raw group commit on SQLite": raw_limit,
    "the least loop on it": least_loop,
    "our kernel, without a store": kernel,
    "holdfast on SQLite": holdfast,
}


def _seconds(work: Callable[[Job], Awaitable[float]], runs: int) -> float:
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
        job: Job = {"folder": folder, "variant": "sqlite", "runs": runs, "steps": 20, "bytes": 1000, "postgres": None}

        async def whole() -> float:
            return await work(job)

        return asyncio.run(whole())


def main() -> None:
    """Print microseconds a step, and the share of raw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    for runs in (128, 1000):
        took = {name: list[float]() for name in MEASURED}
        for _ in range(rounds):
            for name, work in MEASURED.items():
                took[name].append(_seconds(work, runs) / runs / 20 * 1e6)
        limit = took["raw group commit on SQLite"]
        for name, all_of in took.items():
            share = statistics.median(raw / own for raw, own in zip(limit, all_of, strict=True))
            took_a_step = statistics.median(all_of)
            print(f"{runs:5,} runs  {name:<28} {took_a_step:6.1f} us a step, {share:.2f} of raw", flush=True)


if __name__ == "__main__":
    main()
