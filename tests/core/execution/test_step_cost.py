"""What a step costs, counted and not timed: the same early and late in a run."""

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.core.agents.agent import Agent, Bounds
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Ports
from holdfast.core.run.messages import Message, Reply, ToolCall, Usage
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.workflows import workflow

STEPS = 600


class Counting:
    """A model that asks for calls, and counts the function calls that are made between two of its replies."""

    def __init__(self, calls: int, kinds: Collection[str] = ("call", "c_call")) -> None:
        self._calls, self._kinds = calls, kinds
        self.asked = 0
        self.events: list[int] = []
        self._count = 0

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        sys.setprofile(None)
        self.events.append(self._count)
        self._count = 0
        self.asked += 1
        if self.asked > STEPS:
            return Reply(text="done")
        numbers = range(self.asked * 10_000, self.asked * 10_000 + self._calls)
        calls = [ToolCall(id=str(number), name="look", arguments={"n": number}) for number in numbers]
        reply = Reply(tool_calls=calls, usage=Usage(input_tokens=1000))
        sys.setprofile(self._profile)
        return reply

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event in self._kinds:
            self._count += 1


async def _seen(n: int) -> str:
    return "seen"


def agent(model: Counting, effect: str) -> Agent:
    bounds = Bounds(max_steps=STEPS + 1)
    return Agent(name="a", model=model, tools=[Tool(_seen, name="look", effect=effect)], bounds=bounds)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("effect", ["pure", "once"])
async def test_a_late_step_makes_as_many_function_calls_as_an_early_one(effect: str, durable: bool) -> None:
    model = Counting(calls=1)
    executor = SimulatedHost().executor if durable else Executor()
    try:
        await executor.run(agent(model, effect), "go")
    finally:
        sys.setprofile(None)
    # The most frequent count of a hundred steps: a timer or a garbage collection may disturb any single one.
    early, late = (Counter(part).most_common(1)[0][0] for part in (model.events[10:110], model.events[-100:]))
    assert early == late > 10


@pytest.mark.parametrize(
    ("effect", "calls", "least", "most"), [("pure", 1, 1, 1), ("once", 1, 2, 2), ("pure", 3, 1, 3), ("once", 3, 3, 4)]
)
async def test_a_step_is_as_many_writes_as_it_needs_and_no_more(effect: str, calls: int, least: int, most: int) -> None:
    """One for the step, one before the first of its once calls, and one for every result but the last."""
    host = SimulatedHost(clock=ManualClock())  # on which no step is too slow to be written as one
    model = Counting(calls)
    try:
        await host.executor.run(agent(model, effect), "go")
    finally:
        sys.setprofile(None)
    begun_and_answered = 2
    assert least <= (len(host.store.writes) - begun_and_answered) / STEPS <= most


@pytest.mark.parametrize(("seconds", "is_durable"), [(0.2, True), (0.01, False)])
async def test_a_reply_that_took_long_is_durable_before_its_pure_tool_starts(seconds: float, is_durable: bool) -> None:
    """A write of its own would double the cost of a step with a model that answers at once. Such models are rare."""
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    stored = []

    async def look(n: int) -> str:
        stored.append(len(host.store.writes))
        return "seen"

    async def ask(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        await clock.advance(timedelta(seconds=seconds))
        stored.append(len(host.store.writes))
        asked = sum(isinstance(message, Reply) for message in messages)
        return Reply(tool_calls=[ToolCall(id=str(asked), name="look", arguments={"n": asked})] if asked < 3 else [])

    await host.executor.run(Agent(name="a", model=ask, tools=[Tool(look, name="look", effect="pure")]), "go")
    # The first reply of an attempt is always saved first: if its tools end the process, the journal shows which did.
    [_, _, asked, made, asked_later, made_later, _] = stored
    assert (made > asked, made_later > asked_later) == (is_durable, is_durable)


@pytest.mark.parametrize(("effect", "most"), [("once", 134), ("pure", 104)])
async def test_a_step_makes_few_python_calls(effect: str, most: int) -> None:
    """The figures may fall, not grow. A coroutine that is resumed counts as called."""
    model = Counting(calls=1, kinds=["call"])
    try:
        await Executor(Ports(checkpoints=StoreCheckpoints(MemoryStore()))).run(agent(model, effect), "go")
    finally:
        sys.setprofile(None)
    assert Counter(model.events[10:110]).most_common(1)[0][0] <= most


@pytest.mark.parametrize(("effect", "most"), [("once", 166), ("pure", 126)])
async def test_a_step_of_a_workflow_makes_few_python_calls(effect: str, most: int) -> None:
    """The figures may fall, not grow. They contain some 20 calls of the clock and the store of the test."""
    counts, look = Counting(calls=1, kinds=["call"]), Tool(_seen, name="look", effect=effect)

    @workflow
    async def flow() -> None:
        for number in range(STEPS):
            await counts([], [])
            await look(number)
        sys.setprofile(None)

    try:
        # On a clock on which no step is too slow to be written as one.
        await SimulatedHost(clock=ManualClock()).executor.run(flow, "")
    finally:
        sys.setprofile(None)
    early, late = (Counter(part).most_common(1)[0][0] for part in (counts.events[10:110], counts.events[-100:]))
    assert early == late <= most
