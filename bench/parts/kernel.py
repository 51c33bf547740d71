"""The kernel's own cost: flat over a long run, small beside a bare pydantic-ai loop, and quick to import.

Prints ratios. The first two are of processor time, which other work on the machine disturbs least.
"""

import asyncio
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.core.agents.agent import Agent, Bounds
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Ports
from holdfast.core.run.messages import Message, Reply, ToolCall, Usage
from holdfast.stores.memory import MemoryStore

STEPS, WARM = 10_000, 20
#: Steps of the run that is compared with pydantic-ai, and the step at which it is measured.
SHORT, AT = 130, 100
PAYLOAD = "x" * 1000


@tool(effect="pure")
async def look(n: int) -> str:
    """Look."""
    return PAYLOAD


class Stamps:
    """A model that asks for one tool call a step and notes the processor time at which it was asked."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self.times: list[float] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.times.append(time.process_time())
        number = len(self.times)
        if number > self._steps:
            return Reply(text="done")
        usage = Usage(input_tokens=100, output_tokens=10)
        return Reply(
            text=PAYLOAD, tool_calls=[ToolCall(id=str(number), name="look", arguments={"n": number})], usage=usage
        )

    def around(self, step: int, width: int = 10) -> float:
        """Seconds of a step, the median of those around it."""
        times = self.times[step - width : step + width]
        return statistics.median(after - before for before, after in itertools.pairwise(times))


async def _run(steps: int, ports: Ports) -> Stamps:
    model = Stamps(steps)
    bounds = Bounds(max_steps=steps + 1)
    gc.collect()
    gc.freeze()  # what was there before is not this run's cost
    await Executor(ports).run(Agent(name="bench", model=model, tools=[look], bounds=bounds), "go")
    gc.unfreeze()
    return model


async def _flat(ports: Ports) -> float:
    """The last hundred steps as a multiple of the first hundred: of each the best of five runs, and warmed up."""
    first, last = [], []
    for _ in range(5):
        times = (await _run(STEPS, ports)).times
        first.append(times[WARM + 100] - times[WARM])
        last.append(times[-1] - times[-101])
    return min(last) / min(first)


async def flatness() -> dict[str, float]:
    """How much dearer the last hundred of ten thousand steps are than the first: without a store, and with one."""
    durable = Ports(checkpoints=StoreCheckpoints(MemoryStore()))
    return {"in memory": await _flat(Ports()), "on a memory store": await _flat(durable)}


async def _bare_pydantic_ai(steps: int) -> list[float]:
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import UsageLimits

    times: list[float] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        times.append(time.process_time())
        if len(times) > steps:
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(
            parts=[TextPart(PAYLOAD), ToolCallPart("look", {"n": len(times)}, tool_call_id=str(len(times)))]
        )

    agent = PydanticAgent(FunctionModel(reply))

    @agent.tool_plain
    async def look(n: int) -> str:
        """Look."""
        return PAYLOAD

    gc.collect()
    await agent.run("go", usage_limits=UsageLimits(request_limit=None))
    return times


async def cost_beside_pydantic_ai() -> dict[str, float]:
    """The loop's own seconds per step at step 100, and those of a bare pydantic-ai loop with a FunctionModel."""
    durable = Ports(checkpoints=StoreCheckpoints(MemoryStore()))
    ours, stored, theirs = [], [], []
    for _ in range(3):
        ours.append((await _run(SHORT, Ports())).around(AT))
        stored.append((await _run(SHORT, durable)).around(AT))
        stamps = Stamps(0)
        stamps.times = await _bare_pydantic_ai(SHORT)
        theirs.append(stamps.around(AT))
    return {"ours": min(ours), "ours on a memory store": min(stored), "pydantic-ai": min(theirs)}


def import_seconds() -> tuple[float, float]:
    """What `import holdfast` takes in a fresh process: on the processor, and on the clock. The best of several."""
    program = (
        "import time; clock, processor = time.perf_counter(), time.process_time(); import holdfast; "
        "print(time.process_time() - processor, time.perf_counter() - clock)"
    )
    shown = [
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(7)
    ]
    return min(float(processor) for processor, _ in shown), min(float(clock) for _, clock in shown)


def _say(what: str, ratio: float, bound: str) -> None:
    print(f"{what:<72} {ratio:7.3f}    ({bound})", flush=True)


def main() -> None:
    """Print the ratios, each beside its bound."""
    for name, ratio in asyncio.run(flatness()).items():
        _say(f"last 100 of {STEPS:,} steps : first 100, {name}", ratio, "at most 1.2")
    cost = asyncio.run(cost_beside_pydantic_ai())
    theirs = cost.pop("pydantic-ai")
    for name, ours in cost.items():
        what = f"step {AT}, {name} : of a bare pydantic-ai loop"
        _say(what, ours / theirs, f"under 0.1; {ours * 1e6:.0f} : {theirs * 1e6:.0f} us")
    processor, clock = import_seconds()
    _say(
        "import holdfast : 150 ms",
        processor / 0.15,
        f"under 1; {processor * 1e3:.0f} ms, by the clock {clock * 1e3:.0f}",
    )


if __name__ == "__main__":
    main()
