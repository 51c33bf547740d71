"""The agent that is measured: a workflow that asks a model, calls tools, and repeats, each call a step of DBOS.

Its model and its tools are functions of the module, as DBOS wants them; what a workload wants to know of them, or to do
in them, it tells the `watch`.
"""

import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable

from bench.systems.protocol import text
from dbos import DBOS


async def nothing(number: int) -> None:
    """Do nothing."""


class Watch:
    """What happens beside the agent. Steps that are replayed are not seen here: DBOS does not call them again."""

    def __init__(self) -> None:
        #: When the model was called, by run.
        self.times: dict[str | None, list[float]] = defaultdict(list)
        #: Awaited with the number of the message, before it is made.
        self.in_model: Callable[[int], Awaitable[None]] = nothing

    def stamp(self) -> None:
        self.times[DBOS.workflow_id].append(time.perf_counter())

    def step_seconds(self) -> list[float]:
        return [later - earlier for times in self.times.values() for earlier, later in itertools.pairwise(times)]


watch = Watch()


@DBOS.step()
def plain_model(number: int, size: int) -> str:
    watch.stamp()
    return text(number, size)


@DBOS.step()
def plain_tool(number: int, size: int) -> str:
    return text(number, size)


@DBOS.workflow()
def plain_agent(steps: int, size: int) -> None:
    """One tool call a step, without asyncio."""
    transcript = []
    for number in range(0, 2 * steps, 2):
        transcript.append(plain_model(number, size))
        transcript.append(plain_tool(number + 1, size))
    plain_model(2 * steps, len("done"))


@DBOS.step()
async def model(number: int, size: int) -> str:
    watch.stamp()
    await watch.in_model(number)
    return text(number, size)


@DBOS.step()
async def tool(number: int, size: int) -> str:
    return text(number, size)


@DBOS.workflow()
async def agent(steps: int, size: int) -> None:
    transcript = []
    for number in range(0, 2 * steps, 2):
        transcript.append(await model(number, size))
        transcript.append(await tool(number + 1, size))
    await model(2 * steps, len("done"))
