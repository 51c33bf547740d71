"""What a model call asks of the limits of its provider, and errors of models and factories that a run names."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, Retry, Usage, tool
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.core.errors import DefinitionError, ModelUnavailable, NotDurable, RunCancelled
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Checkpointer, Ports, RatePermit
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply
from holdfast.testing.manual_clock import ManualClock

SECOND = timedelta(seconds=1)
NOW_OR_NEVER = Retry(max_tries=2, jitter=0, initial_delay=timedelta(0))


class Limits:
    """Limits of a provider: remembers what it was asked, and lets calls wait for these times first."""

    def __init__(self, *waits: datetime) -> None:
        self._waits = list(waits)
        self.asked: list[tuple[str, int]] = []
        self.settled: list[int] = []
        self.paused: list[timedelta] = []

    async def acquire(self, info: RunInfo, model: str, tokens: int) -> RatePermit | datetime | None:
        self.asked.append((info.run_id, tokens))
        return self._waits.pop(0) if self._waits else object()  # type: ignore[return-value]

    def settle(self, permit: RatePermit, tokens: int) -> None:
        self.settled.append(tokens)

    def pause(self, permit: RatePermit, delay: timedelta) -> None:
        self.paused.append(delay)


@tool(effect="pure")
async def look() -> str:
    return "seen"


async def test_each_call_is_settled_with_its_tokens_and_the_next_reserves_as_many() -> None:
    limits = Limits()
    first = tool_reply(call("1", "look"), usage=Usage(input_tokens=30, output_tokens=12))
    model = ScriptedModel(first, Reply(text="done", usage=Usage(input_tokens=7)))
    await Executor(Ports(rate_limiter=limits)).run(Agent(name="a", model=model, tools=[look]), "go", run_id="r")
    assert limits.asked == [("r", 0), ("r", 42)]
    assert limits.settled == [42, 7]
    assert limits.paused == []


async def test_a_reply_without_a_count_keeps_the_reservation() -> None:
    limits = Limits()
    await Executor(Ports(rate_limiter=limits)).run(Agent(name="a", model=ScriptedModel("done")), "go")
    assert limits.settled == []


async def test_the_wait_that_a_provider_asks_for_pauses_all_runs() -> None:
    limits, clock, asked = Limits(), ManualClock(), 0

    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ModelUnavailable("busy", 7 * SECOND)
        return Reply(text="done")

    agent = Agent(name="a", model=model, retry=NOW_OR_NEVER)
    running = asyncio.create_task(Executor(Ports(rate_limiter=limits), clock=clock).run(agent, "go"))
    await clock.advance(10 * SECOND)
    assert (await running).output == "done"
    assert limits.paused == [7 * SECOND]
    assert len(limits.asked) == 2


async def test_a_call_waits_until_its_limits_allow_it() -> None:
    clock = ManualClock()
    limits = Limits(clock.now() + 3 * SECOND, clock.now() + 60 * SECOND)
    running = asyncio.create_task(
        Executor(Ports(rate_limiter=limits), clock=clock).run(Agent(name="a", model=ScriptedModel("done")), "go")
    )
    await clock.advance(59 * SECOND)
    assert (len(limits.asked), running.done()) == (2, False)
    await clock.advance(SECOND)
    assert (await running).output == "done"
    assert len(limits.asked) == 3


async def test_a_model_that_is_a_plain_function_is_named() -> None:
    def model(messages: Sequence[Message], tools: Sequence[Any]) -> Any:
        return Reply(text="done")

    with fails_with(DefinitionError, match=r"the model of run r is a plain function: write it as `async def model"):
        await Executor().run(Agent(name="a", model=model), "go", run_id="r")

    async def broken(messages: Sequence[Message], tools: Sequence[Any]) -> Any:
        raise TypeError("its own")

    with fails_with(TypeError, match="its own"):
        await Executor().run(Agent(name="a", model=broken), "go", run_id="r")


class BrokenCheckpoints(StoreCheckpoints):
    """Makes no checkpointer."""

    async def begin(self, info: RunInfo) -> Checkpointer:
        raise OSError("no store today")


@pytest.mark.parametrize("required", [True, False])
async def test_a_run_that_cannot_be_made_durable_is_refused_only_if_that_is_required(required: bool) -> None:
    executor = Executor(Ports(checkpoints=BrokenCheckpoints(None)), require_durability=required)
    agent = Agent(name="a", model=ScriptedModel("done"))
    if required:
        with pytest.raises(NotDurable, match="run r was refused: it could not be made durable: no store today"):
            await executor.run(agent, "go", run_id="r")
    else:
        assert (await executor.run(agent, "go", run_id="r")).output == "done"


async def test_a_task_that_waits_for_a_cancelled_run_is_not_cancelled_itself() -> None:
    host, began = SimulatedHost(), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
        began.set()
        await asyncio.Event().wait()
        return Reply()

    agent = Agent(name="a", model=model)
    running = asyncio.create_task(host.executor.run(agent, "go", run_id="r", on_cancel="cancel"))
    await began.wait()
    waiting = asyncio.create_task(host.executor.wait("r"))
    await asyncio.sleep(0)
    assert host.executor.active_run_ids == {"r"}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(RunCancelled):
        await waiting
    assert await host.executor.wait("r") is None
    assert host.executor.active_run_ids == frozenset()
