"""The reply that asks for tools is written before a once tool starts, and while pure and idempotent ones run."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.errors import ClaimLost, StoreFull
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import PayloadError, RunCancelled
from holdfast.core.execution.saving import INTENT_DELAY
from holdfast.core.run.messages import Message, Reply, ToolResult, User
from holdfast.testing.manual_clock import ManualClock

ASK = tool_reply(call("1", "work"))
BEGUN = [EntryKind.BEGIN, EntryKind.MESSAGE]


class Slow:
    """A harmless tool that works until it is let go."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def work(self) -> str:
        self.begun.set()
        await self.go_on.wait()
        return "worked"


def agent(slow: Slow, effect: str = "pure") -> Agent:
    return Agent(name="a", model=ScriptedModel(ASK, "done"), tools=[Tool(slow.work, effect=effect)])


async def begun(host: SimulatedHost, slow: Slow, effect: str = "pure") -> "asyncio.Task[object]":
    run: asyncio.Task[object] = asyncio.create_task(host.executor.run(agent(slow, effect), "go", run_id="r"))
    await slow.begun.wait()
    return run


async def test_the_reply_that_asks_for_a_harmless_tool_is_written_while_the_tool_works() -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock), Slow()
    run = await begun(host, slow)
    assert host.store.kinds == [BEGUN]
    await clock.advance(INTENT_DELAY)
    assert host.store.kinds == [BEGUN, [EntryKind.MESSAGE]]
    slow.go_on.set()
    await run
    assert host.store.kinds[2] == [EntryKind.MESSAGE, EntryKind.STEP]


async def test_a_quick_harmless_call_shares_one_write_with_its_reply() -> None:
    host, slow = SimulatedHost(clock=ManualClock()), Slow()
    slow.go_on.set()
    await host.executor.run(agent(slow), "go")
    assert host.store.kinds[:2] == [BEGUN, [EntryKind.MESSAGE, EntryKind.MESSAGE, EntryKind.STEP]]


async def test_a_harmless_call_whose_reply_was_written_is_repeated_without_asking_the_model() -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock), Slow()
    run = await begun(host, slow)
    await clock.advance(INTENT_DELAY)
    await host.crash()
    run.cancel()
    await asyncio.wait([run])
    again = Slow()
    again.go_on.set()
    model = ScriptedModel("never", "done")
    tools = [Tool(again.work, effect="pure")]
    result = await SimulatedHost(host.inner, clock=clock).resume(Agent(name="a", model=model, tools=tools), "r")
    assert (result.output, len(model.requests)) == ("done", 1)
    assert again.begun.is_set()


async def test_a_run_that_was_lost_is_stopped_by_what_it_writes_beside_its_tool() -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock), Slow()
    run = await begun(host, slow)
    await host.inner.claim("r", "another worker", steal=True)
    await clock.advance(INTENT_DELAY)
    with pytest.raises(ClaimLost):
        await run
    assert await host.get_statuses() == {"r": RunStatus.RUNNING}


async def test_what_cannot_be_written_beside_a_tool_is_carried_by_the_step(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock), Slow()
    run = await begun(host, slow)
    host.store.fail("append", StoreFull("no room"))
    await clock.advance(INTENT_DELAY)
    assert "the next one will carry it" in caplog.text
    slow.go_on.set()
    await run
    assert host.store.kinds[1] == [EntryKind.MESSAGE, EntryKind.MESSAGE, EntryKind.STEP]


async def test_what_must_not_be_written_beside_a_tool_ends_the_run() -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock), Slow()
    run = await begun(host, slow)
    execution = host.executor.get_attempt("r")
    assert execution is not None
    execution.state.history.append(User("half a pair \ud800"))
    await clock.advance(INTENT_DELAY)
    with fails_with(PayloadError):
        await run
    assert await host.list_records() == []


async def test_nothing_waits_for_a_clock_when_the_run_is_over() -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock), Slow()
    run = await begun(host, slow)
    execution = host.executor.get_attempt("r")
    assert execution is not None
    execution.stop(RunCancelled("enough"))
    await asyncio.wait([run])
    assert clock.waiting == 0
    await clock.advance(timedelta(hours=1))
    assert await host.list_records() == []


# -- under a throttle -------------------------------------------------------------------------------------------------

HOUR = CheckpointSettings(save_interval=timedelta(hours=1))


@pytest.mark.parametrize(("effect", "writes"), [("pure", 1), ("idempotent", 2)])
async def test_a_throttle_does_not_hold_back_the_reply_that_asks_for_an_idempotent_call(
    effect: str, writes: int
) -> None:
    clock = ManualClock()
    host, slow = SimulatedHost(clock=clock, settings=HOUR), Slow()
    run = await begun(host, slow, effect)
    await clock.advance(INTENT_DELAY)
    assert host.store.kinds == [BEGUN, [EntryKind.MESSAGE]][:writes]
    slow.go_on.set()
    await run
    # The result is not written at once: with its key the call may be repeated.
    assert len(host.store.kinds) == writes


@pytest.mark.parametrize(("effect", "writes"), [("pure", 1), ("idempotent", 2)])
async def test_nor_that_of_a_quick_one(effect: str, writes: int) -> None:
    host, slow = SimulatedHost(clock=ManualClock(), settings=HOUR), Slow()
    slow.go_on.set()
    await host.executor.run(agent(slow, effect), "go")
    assert host.store.kinds == [BEGUN, [EntryKind.MESSAGE, EntryKind.MESSAGE, EntryKind.STEP]][:writes]


@pytest.mark.parametrize("quick", [True, False])
async def test_an_idempotent_call_is_made_under_one_key_whenever_a_throttled_process_dies(quick: bool) -> None:
    clock, ids, keys = ManualClock(), itertools.count(), set()
    host = SimulatedHost(clock=clock, settings=HOUR)
    paid = asyncio.Event()

    def payer(dies: bool) -> Agent:
        async def pay() -> str:
            keys.add(current_call().idempotency_key)
            paid.set()
            return await asyncio.Event().wait() if dies and not quick else "paid"  # type: ignore[return-value]

        async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
            if not isinstance(messages[-1], ToolResult):
                return tool_reply(call(f"call-{next(ids)}", "pay"))
            return await asyncio.Event().wait() if dies else Reply(text="done")  # type: ignore[return-value]

        return Agent(name="a", model=model, tools=[Tool(pay, effect="idempotent")])

    run = asyncio.create_task(host.executor.run(payer(dies=True), "go", run_id="r"))
    await paid.wait()
    await clock.advance(INTENT_DELAY)
    await host.crash()
    run.cancel()
    await asyncio.wait([run])
    assert (await SimulatedHost(host.inner, clock=clock).resume(payer(dies=False), "r")).output == "done"
    assert len(keys) == 1
