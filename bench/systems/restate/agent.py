"""The agent that is measured: a durable handler that asks a model, calls tools, and repeats.

What a workload wants to know of the model and the tools, or to do in them, it tells the `watch`.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

import restate
from bench.systems.protocol import text


async def nothing(number: int) -> None:
    """Do nothing."""


class Watch:
    """What happens beside the agent. What is replayed is not seen here: Restate does not call it again."""

    def __init__(self) -> None:
        #: When the model was called, by run.
        self.times: dict[str, list[float]] = defaultdict(list)
        #: Awaited with the number of the message, before it is made.
        self.in_model: Callable[[int], Awaitable[None]] = nothing

    def step_seconds(self) -> list[float]:
        return [later - earlier for times in self.times.values() for earlier, later in itertools.pairwise(times)]


watch = Watch()
service = restate.Service("agent")
#: Spares Restate the inspection of each function.
A_TEXT = restate.RunOptions(type_hint=str)


async def model(run: str, number: int, size: int) -> str:
    watch.times[run].append(time.perf_counter())
    await watch.in_model(number)
    return text(number, size)


async def tool(number: int, size: int) -> str:
    return text(number, size)


@service.handler()
async def run(ctx: restate.Context, sizes: dict[str, int]) -> None:
    """Take the steps of a run."""
    name, size = ctx.request().id, sizes["bytes"]
    transcript = []
    for number in range(0, 2 * sizes["steps"], 2):
        transcript.append(await ctx.run_typed("model", model, A_TEXT, name, number, size))
        transcript.append(await ctx.run_typed("tool", tool, A_TEXT, number + 1, size))
    await ctx.run_typed("model", model, A_TEXT, name, 2 * sizes["steps"], len("done"))
