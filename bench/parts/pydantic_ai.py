"""A durable pydantic-ai agent beside the bare one: `python -m bench.parts.pydantic_ai`.

Each step is a reply of 1 KB that asks for one `once` tool, and a result of 1 KB. Four loops of one agent take turns:
the bare one and a durable one without a store; and, because a store's own writes are no overhead, a bare one that
makes the same saves by hand beside a durable one, both on SQLite. Measured is the processor time of the process, all
threads, and of all rounds the least: a busy machine disturbs that little. `--instructions` counts instructions
instead, which it does not disturb at all; that needs valgrind, and minutes.
"""

import argparse
import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import CallToolsNode, ModelRequestNode, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Bounds, RunInfo
from holdfast.adapters.pydantic_ai import durable
from holdfast.adapters.pydantic_ai.message_codec import CODEC
from holdfast.checkpoint import StoreCheckpoints
from holdfast.core import Executor, Ports
from holdfast.core.run.state import RunState
from holdfast.ids import make_id
from holdfast.stores.from_url import store_from_url

MOST_STEPS = 1000
#: In place of a size: only what comes before the runs that are counted.
NO_RUNS = 0
KILOBYTE = "x" * 1024
NO_LIMITS = UsageLimits(request_limit=None)

LOOPS = BARE, NO_STORE, SAME_SAVES, SQLITE = "bare", "no store", "bare, same saves", "SQLite"
#: Each durable loop, and the bare one it is compared with.
BESIDE = {NO_STORE: BARE, SQLITE: SAME_SAVES}

Loop = Callable[[], Awaitable[Any]]
#: Figures of one run, by loop.
Figures = Mapping[str, float]


class Script:
    """A model that asks for the tool in each reply but the last."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done = len(messages) // 2
        text = TextPart(KILOBYTE)
        calls = [ToolCallPart("look", {"n": done}, f"c{done}")] if done < self.steps else []
        return ModelResponse(parts=[text, *calls])


def bare_agent(script: Script) -> PydanticAIAgent[None, str]:
    agent: PydanticAIAgent[None, str] = PydanticAIAgent(FunctionModel(script.__call__), name="bench")

    @agent.tool_plain(metadata={"effect": "once"})
    async def look(n: int) -> str:
        return KILOBYTE

    return agent


async def run_with_saves(agent: PydanticAIAgent[None, str], checkpoints: StoreCheckpoints) -> None:
    """The bare loop, saved by hand wherever a durable run is: as it begins, with each reply, and after each step."""
    info = RunInfo(run_id=make_id(), agent_name="bench", prompt="go")
    checkpointer = await checkpoints.begin(info)
    state = RunState(codec=CODEC)
    async with agent.iter("go", usage_limits=NO_LIMITS) as run:
        async for node in run:
            if isinstance(node, ModelRequestNode):
                state.history.append(node.request)
                if len(state.history) > 1:
                    state.finish_step()
                await checkpointer.save(state, force=True)
            elif isinstance(node, CallToolsNode):
                state.history.append(node.model_response)
                if not node.model_response.tool_calls:
                    state.finish_step()
                await checkpointer.save(state, force=True)
    assert run.result is not None
    await checkpointer.complete(run.result.output, state.usage)


class Bench:
    """The four loops over one agent."""

    def __init__(self, folder: Path) -> None:
        self.script = Script(2)
        self._agent = bare_agent(self.script)
        self._durable = durable(self._agent, bounds=Bounds(max_steps=MOST_STEPS))
        self._without = Executor(Ports(checkpoints=StoreCheckpoints(None)))
        self._checkpoints = StoreCheckpoints(store_from_url(f"sqlite:{folder / f'runs-{os.getpid()}.db'}"))
        self._with = Executor(Ports(checkpoints=self._checkpoints))

    @property
    def loops(self) -> Mapping[str, Loop]:
        return {
            BARE: lambda: self._agent.run("go", usage_limits=NO_LIMITS),
            NO_STORE: lambda: self._without.run(self._durable, "go"),
            SAME_SAVES: lambda: run_with_saves(self._agent, self._checkpoints),
            SQLITE: lambda: self._with.run(self._durable, "go"),
        }

    async def close(self) -> None:
        await self._with.shutdown()


# -- processor time ---------------------------------------------------------------------------------------------


async def timed(loop: Loop) -> float:
    gc.collect()  # otherwise the next measurement pays for it
    gc.disable()
    began = time.process_time()
    await loop()
    took = time.process_time() - began
    gc.enable()
    return took


async def least_seconds(sizes: Sequence[int], folder: Path, rounds: int) -> AsyncIterator[tuple[int, Figures]]:
    bench = Bench(folder)
    for loop in bench.loops.values():
        await loop()  # whatever is made once is made here
    for steps in sizes:
        bench.script.steps = steps
        took: dict[str, list[float]] = {name: [] for name in bench.loops}
        for _ in range(max(5, rounds * 10 // steps)):
            for name, loop in bench.loops.items():
                took[name].append(await timed(loop))
        yield steps, {name: min(each) for name, each in took.items()}
    await bench.close()


# -- instructions -----------------------------------------------------------------------------------------------


def fork_counted(folder: Path, name: str, steps: int, runs: int) -> None:
    """Make runs of one loop in a process of its own: what was imported before is counted alike in all of them."""

    async def work() -> None:
        bench = Bench(folder)
        for _ in range(3):
            await bench.loops[name]()
        bench.script.steps = steps
        for _ in range(runs):
            await bench.loops[name]()
        await bench.close()

    if (pid := os.fork()) == 0:
        gc.disable()
        asyncio.run(work())
        os._exit(0)
    os.waitpid(pid, 0)
    print(pid, steps, runs, name, flush=True)


def count_all(sizes: Sequence[int], folder: Path) -> None:
    for name in LOOPS:
        fork_counted(folder, name, NO_RUNS, 0)
        for steps in sizes:
            fork_counted(folder, name, steps, 1 + 50 // steps)


def instructions(sizes: Sequence[int], folder: Path) -> Iterator[tuple[int, Figures]]:
    """Of one run of each loop, by size."""
    command = [
        "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
        f"--log-file={folder}/log.%p", sys.executable, "-m", "bench.parts.pydantic_ai",
        "--count-in", str(folder), "--sizes", ",".join(map(str, sizes)),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    counted: dict[tuple[str, int], tuple[int, int]] = {}
    for line in said.splitlines():
        pid, of_size, runs, name = line.split(maxsplit=3)
        found = re.search(r"I\s+refs:\s+([\d,]+)", (folder / f"log.{pid}").read_text())
        assert found is not None, f"cachegrind says nothing about {line}"
        counted[name, int(of_size)] = int(runs), int(found[1].replace(",", ""))
    for steps in sizes:
        figures: dict[str, float] = {}
        for name in LOOPS:
            runs_made, count = counted[name, steps]
            figures[name] = (count - counted[name, NO_RUNS][1]) / runs_made
        yield steps, figures


# -- what is printed --------------------------------------------------------------------------------------------


def show(steps: int, figures: Figures, per_unit: float, unit: str) -> None:
    each = {name: figure * per_unit / (steps + 1) for name, figure in figures.items()}
    beside = [
        f"{bare} {each[bare]:.3f}, {name} {each[name]:.3f}: {each[name] / each[bare]:.3f}"
        for name, bare in BESIDE.items()
    ]
    print(f"{steps:4} steps, {unit} a step: {'; '.join(beside)}", flush=True)


async def show_seconds(sizes: Sequence[int], folder: Path, rounds: int) -> None:
    async for steps, seconds in least_seconds(sizes, folder, rounds):
        show(steps, seconds, 1e3, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often each of the loops is run")
    parser.add_argument("--sizes", default="10,50,200", help="how many steps a run has")
    parser.add_argument("--instructions", action="store_true", help="count instructions, under valgrind")
    parser.add_argument("--count-in", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.count_in is not None:
        count_all(sizes, given.count_in)
        return
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))  # /tmp may be memory
    try:
        if given.instructions:
            for steps, figures in instructions(sizes, folder):
                show(steps, figures, 1e-6, "millions of instructions")
        else:
            asyncio.run(show_seconds(sizes, folder, given.rounds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
