"""A durable pydantic-ai agent beside the bare one: `python -m bench.parts.pydantic_ai`.

Each step is a reply of 1 KB that asks for one `once` tool, and a result of 1 KB. The two loops take turns. Measured is
the processor time of the event loop's thread, and of all rounds the least: a busy machine disturbs that little. What is
spent on saving (finding what is new, encoding it, and the store's own writes) is measured beside and subtracted.
"""

import argparse
import asyncio
import gc
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Bounds, Checkpoints, Executor, Ports, RunInfo
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.opening import store_from_url

KILOBYTE = "x" * 1024


def bare_agent(steps: int) -> PydanticAIAgent[None, str]:
    """An agent that takes so many steps and answers."""

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        done = len(messages) // 2
        text = TextPart(KILOBYTE)
        return ModelResponse(parts=[text, ToolCallPart("look", {"n": done}, f"c{done}")] if done < steps else [text])

    agent: PydanticAIAgent[None, str] = PydanticAIAgent(FunctionModel(reply), name="bench")

    @agent.tool_plain(metadata={"effect": "once"})
    async def look(n: int) -> str:
        return KILOBYTE

    return agent


class Timed:
    """Something whose async methods are timed."""

    def __init__(self, inner: Any, clock: "Timed | None" = None) -> None:
        self._inner, self._clock, self.seconds = inner, clock or self, 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def timed(*arguments: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return await method(*arguments, **options)
            finally:
                self._clock.seconds += time.thread_time() - began

        return timed


class TimedCheckpoints(Timed):
    """Checkpoints whose handles are timed, too."""

    async def begin(self, info: RunInfo) -> Any:
        return Timed(await self._inner.begin(info), self)


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    gc.collect()  # else whoever comes next pays for it
    gc.disable()
    began = time.thread_time()
    await work()
    took = time.thread_time() - began
    gc.enable()
    return took


async def compare(steps: int, url: str | None, rounds: int) -> tuple[float, float, float]:
    """Milliseconds per step: bare, durable without saving, and saving."""
    bare, rest, saving = [], [], []
    agent = bare_agent(steps)
    known = durable(agent, bounds=Bounds(max_iterations=steps + 1))
    checkpoints = TimedCheckpoints(Checkpoints(store_from_url(url) if url is not None else None))
    executor = Executor(Ports(checkpoints=checkpoints))
    await executor.run(known, "go")
    for _ in range(rounds):
        bare.append(await timed(lambda: agent.run("go", usage_limits=UsageLimits(request_limit=None))))
        before = checkpoints.seconds
        whole = await timed(lambda: executor.run(known, "go"))
        saving.append(checkpoints.seconds - before)
        rest.append(whole - saving[-1])
    await executor.shutdown()
    least = [min(each) * 1000 / (steps + 1) for each in (bare, rest, saving)]
    return least[0], least[1], least[2]


async def main(rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))  # /tmp may be memory
    try:
        print(f"{'ms per step':24} {'bare':>8} {'durable':>8} {'+ saving':>8} {'durable/bare':>13}")
        for steps in (10, 50, 200):
            for name, url in {"no store": None, "memory": "memory:", "sqlite": f"sqlite:{folder / 'runs.db'}"}.items():
                bare, rest, saving = await compare(steps, url, max(5, rounds * 10 // steps))
                print(
                    f"{f'{steps} steps, {name}':24} {bare:8.3f} {rest:8.3f} {saving:8.3f} {rest / bare:13.3f}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="how often each pair of runs is made")
    asyncio.run(main(parser.parse_args().rounds))
