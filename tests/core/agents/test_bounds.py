"""How far a run may go, counted over all of its attempts."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.agent import Agent, Bounds
from holdfast.core.agents.tool import Tool, ToolSchema, tool
from holdfast.core.errors import RepeatedToolCalls, RuntimeExceeded, Shutdown, StepsExceeded
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Leave
from holdfast.core.run.messages import Message, Reply
from holdfast.testing.manual_clock import ManualClock

MINUTE = timedelta(minutes=1)


@tool(effect="pure")
async def look(n: int = 0) -> int:
    return n


def looking(times: int) -> list[Reply]:
    return [tool_reply(call(str(n), "look", n=n)) for n in range(times)]


@pytest.mark.parametrize(("bound", "steps"), [(1, 0), (3, 2), (5, 4)])
async def test_a_run_takes_at_most_its_iterations(bound: int, steps: int) -> None:
    agent = Agent(name="a", model=ScriptedModel(*looking(steps), "done"), tools=[look], bounds=Bounds(max_steps=bound))
    assert (await Executor().run(agent, "go")).steps == bound
    model = ScriptedModel(*looking(steps + 1), "never")
    agent = Agent(name="a", model=model, tools=[look], bounds=Bounds(max_steps=bound))
    with fails_with(StepsExceeded, match="raise max_steps") as raised:
        await Executor().run(agent, "go")
    assert raised.value.bound == bound == len(model.requests)


async def test_iterations_count_on_over_a_resume() -> None:
    host = SimulatedHost()
    bounds = Bounds(max_steps=4)
    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(*looking(3), Shutdown("now")), tools=[look], bounds=bounds),
            "go",
            run_id="r",
        )
    model = ScriptedModel(*looking(4), "never")
    with fails_with(StepsExceeded):
        await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[look], bounds=bounds), "r")
    assert len(model.requests) == 1


async def test_the_same_calls_again_and_again_end_the_run() -> None:
    agent = Agent(
        name="a", model=ScriptedModel(*[looking(1)[0]] * 3, "done"), tools=[look], bounds=Bounds(max_repeats=3)
    )
    assert (await Executor().run(agent, "go")).steps == 4

    model = ScriptedModel(*[looking(1)[0]] * 4, "never")
    with fails_with(RepeatedToolCalls, match=r"called look 3 times in a row.*stuck"):
        await Executor().run(Agent(name="a", model=model, tools=[look], bounds=Bounds(max_repeats=3)), "go")
    assert len(model.requests) == 4


async def test_another_call_in_between_starts_the_count_anew() -> None:
    same, other = tool_reply(call("1", "look", n=1)), tool_reply(call("1", "look", n=2))
    turns = [same, same, other, same, same, Reply(text="done")]
    agent = Agent(name="a", model=ScriptedModel(*turns), tools=[look], bounds=Bounds(max_repeats=2))
    assert (await Executor().run(agent, "go")).steps == 6


async def test_ids_of_calls_are_no_difference_and_true_is_not_one() -> None:
    @tool(effect="pure")
    async def any_of(n: int | bool) -> None: ...

    bounds = Bounds(max_repeats=2)
    turns = [tool_reply(call(str(turn), "any_of", n=1)) for turn in range(3)]
    with fails_with(RepeatedToolCalls):
        await Executor().run(Agent(name="a", model=ScriptedModel(*turns, "never"), tools=[any_of], bounds=bounds), "go")
    turns = [tool_reply(call("1", "any_of", n=n)) for n in (1, True, 1, True)]
    assert await Executor().run(
        Agent(name="a", model=ScriptedModel(*turns, "done"), tools=[any_of], bounds=bounds), "go"
    )


async def test_repeats_count_on_over_a_resume() -> None:
    host = SimulatedHost()
    bounds = Bounds(max_repeats=3)
    same = looking(1)[0]
    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(same, same, Shutdown("now")), tools=[look], bounds=bounds),
            "go",
            run_id="r",
        )
    model = ScriptedModel(same, same, same, same, "never")
    with fails_with(RepeatedToolCalls):
        await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[look], bounds=bounds), "r")
    assert len(model.requests) == 2


def slow_agent(clock: ManualClock, *, steps: int, each: timedelta, bound: timedelta | None, end: object) -> Agent:
    """An agent whose every step takes `each` on the clock."""

    @tool(effect="pure")
    async def work(n: int) -> None:
        await clock.sleep(each)

    turns = [tool_reply(call(str(n), "work", n=n)) for n in range(steps)]
    model = ScriptedModel(*turns, end)  # type: ignore[arg-type]
    return Agent(name="a", model=model, tools=[work], bounds=Bounds(max_runtime=bound))


async def test_a_run_takes_at_most_its_time() -> None:
    clock = ManualClock()
    executor = Executor(clock=clock)
    agent = slow_agent(clock, steps=3, each=MINUTE, bound=4 * MINUTE, end="done")
    run = asyncio.create_task(executor.run(agent, "go"))
    await clock.advance(10 * MINUTE)
    assert (await run).output == "done"

    agent = slow_agent(clock, steps=5, each=MINUTE, bound=4 * MINUTE, end="never")
    run = asyncio.create_task(executor.run(agent, "go"))
    await clock.advance(10 * MINUTE)
    with fails_with(RuntimeExceeded, match="raise max_runtime") as raised:
        await run
    assert raised.value.bound == 4 * MINUTE
    assert clock.waiting == 0


async def test_time_counts_on_over_a_resume_but_not_while_the_run_was_interrupted() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    first = slow_agent(clock, steps=3, each=MINUTE, bound=10 * MINUTE, end=Shutdown("now"))
    run = asyncio.create_task(host.executor.run(first, "go", run_id="r"))
    await clock.advance(5 * MINUTE)
    with pytest.raises(Shutdown):
        await run
    await clock.advance(timedelta(days=3))

    host = SimulatedHost(host.inner, clock=clock)
    second = slow_agent(clock, steps=6, each=MINUTE, bound=10 * MINUTE, end=Shutdown("now"))
    run = asyncio.create_task(host.resume(second, "r"))
    await clock.advance(5 * MINUTE)
    with pytest.raises(Shutdown):
        await run
    resumption = await SimulatedHost(host.inner, clock=clock).claim(second, "r")
    assert resumption.state.elapsed == 6 * MINUTE
    await resumption.checkpointer.leave(Leave())

    third = slow_agent(clock, steps=60, each=MINUTE, bound=10 * MINUTE, end="never")
    run = asyncio.create_task(SimulatedHost(host.inner, clock=clock).resume(third, "r"))
    await clock.advance(timedelta(minutes=3, seconds=59))
    assert not run.done()
    await clock.advance(timedelta(seconds=1))
    with fails_with(RuntimeExceeded):
        await run


async def test_a_run_whose_time_was_over_before_it_was_resumed_ends_at_once() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    run = asyncio.create_task(
        host.executor.run(slow_agent(clock, steps=3, each=MINUTE, bound=None, end=Shutdown("now")), "go", run_id="r")
    )
    await clock.advance(5 * MINUTE)
    with pytest.raises(Shutdown):
        await run

    async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    agent = Agent(name="a", model=hangs, bounds=Bounds(max_runtime=MINUTE))
    run = asyncio.create_task(SimulatedHost(host.inner, clock=clock).resume(agent, "r"))
    await clock.advance(timedelta(0))
    with fails_with(RuntimeExceeded):
        await run
    assert await host.get_statuses() == {}


async def test_the_end_of_a_runs_time_reaches_into_whatever_it_is_doing() -> None:
    """A tool that never comes back, a thread that does not either, and a compaction."""
    clock = ManualClock()
    ended: list[str] = []
    begun = asyncio.Event()

    async def stuck() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("tool")

    async def compact(messages: Sequence[Message]) -> Sequence[Message] | None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("compact")
        return None

    bounds = Bounds(max_runtime=MINUTE)
    for agent in (
        Agent(name="a", model=ScriptedModel(tool_reply(call("1", "stuck"))), tools=[Tool(stuck)], bounds=bounds),
        Agent(name="a", model=ScriptedModel("never"), compact=compact, bounds=bounds),
    ):
        begun.clear()
        host = SimulatedHost(clock=clock)
        run = asyncio.create_task(host.executor.run(agent, "go"))
        await begun.wait()
        await clock.advance(MINUTE)
        with fails_with(RuntimeExceeded):
            await run
        assert await host.list_records() == []
    assert ended == ["tool", "compact"]


async def test_a_tool_that_swallows_its_end_does_not_keep_the_run_alive() -> None:
    clock = ManualClock()
    begun = asyncio.Event()

    @tool
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "what cancel?"
        return "never"

    model = ScriptedModel(tool_reply(call("1", "stubborn")), "never")
    agent = Agent(name="a", model=model, tools=[stubborn], bounds=Bounds(max_runtime=MINUTE))
    host = SimulatedHost(clock=clock)
    run = asyncio.create_task(host.executor.run(agent, "go"))
    await begun.wait()
    await clock.advance(MINUTE)
    with fails_with(RuntimeExceeded):
        await run
    assert len(model.requests) == 1
    assert RunStatus.RUNNING not in (await host.get_statuses()).values()
