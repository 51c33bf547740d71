"""A resumed run continues after its last saved step, and repeats nothing that was finished."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.core.null_listener import NullListener
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool, tool
from holdfast.core.errors import MissingDefinition, RunParked, Shutdown
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, ToolResult, Usage, User
from holdfast.core.run.run_events import Event, ReplyAdded, ToolReturned


class StopsAtTheEnd(NullListener):
    async def on_output(self, info: RunInfo, output: Any) -> None:
        raise Shutdown("now")


class StopsAtTheReply(NullListener):
    def __init__(self, text: str) -> None:
        self._text = text

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, ReplyAdded) and event.text == self._text:
            raise Shutdown("now")


class StopsAtACall(NullListener):
    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, ToolReturned):
            raise Shutdown("now")


async def test_a_resumed_run_is_seeded_with_what_was_saved_and_no_new_input() -> None:
    host = SimulatedHost()
    first = ScriptedModel(tool_reply(call("1", "look")), Shutdown("now"))

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=first, tools=[look], instructions="be brief"), "go", run_id="r")
    second = ScriptedModel("", "done")
    agent = Agent(name="a", model=second, tools=[look], instructions="changed since")
    await SimulatedHost(host.inner).resume(agent, "r")
    assert second.requests == [first.requests[-1]]


async def test_iteration_and_usage_go_on_counting() -> None:
    host = SimulatedHost()
    usage = Usage(input_tokens=10, cost_usd=0.25)

    @tool(effect="pure")
    async def look() -> None: ...

    turns = [tool_reply(call("1", "look"), usage=usage), tool_reply(call("2", "look"), usage=usage)]
    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(*turns, Shutdown("now")), tools=[look]), "go", run_id="r"
        )
    agent = Agent(name="a", model=ScriptedModel(*turns, Reply(text="done", usage=usage)), tools=[look])
    result = await SimulatedHost(host.inner).resume(agent, "r")
    assert result.steps == 3
    assert result.usage == Usage(input_tokens=30, cost_usd=0.75, requests=3, tool_calls=2)


async def test_a_run_that_died_before_its_first_reply_was_recorded_first() -> None:
    host = SimulatedHost()

    async def dies(messages: Sequence[Message]) -> Reply:
        await host.crash()
        raise LookupError

    with fails_with(LookupError):
        await host.executor.run(Agent(name="a", model=ScriptedModel(dies)), "go", run_id="r")
    [record] = await host.list_records()
    assert record.is_interrupted
    model = ScriptedModel("done")
    assert (await SimulatedHost(host.inner).resume(Agent(name="a", model=model), "r")).output == "done"
    assert model.requests == [(User("go"),)]


async def test_an_answer_that_was_saved_is_not_asked_for_again() -> None:
    host = SimulatedHost(ports=Ports(listener=StopsAtTheEnd()))
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go", run_id="r")
    model = ScriptedModel("never")
    result = await SimulatedHost(host.inner).resume(Agent(name="a", model=model), "r")
    assert (result.output, result.steps) == ("done", 1)
    assert model.requests == []


@pytest.mark.parametrize("listener", [StopsAtTheReply("done"), StopsAtTheEnd()])
@pytest.mark.parametrize("before", [[], [Phase(name="first", model=ScriptedModel("on"))]])
async def test_the_step_of_an_answer_that_was_saved_is_counted_once(
    listener: NullListener, before: list[Phase]
) -> None:
    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    model = ScriptedModel(tool_reply(call("1", "look")), "done")
    agent = Agent(name="a", tools=[look], phases=[*before, Phase(name="last", model=model)])
    host = SimulatedHost(ports=Ports(listener=listener))
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id="r")
    result = await SimulatedHost(host.inner).resume(agent, "r")
    steps = len(before) + 2
    assert (result.output, result.steps, result.usage.requests) == ("done", steps, steps)
    assert len(model.requests) == 2


# -- 12: half-done batches --------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c", "d"]


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
@pytest.mark.parametrize("dies_in", NAMES)
async def test_of_a_half_done_batch_only_the_missing_call_is_made(effect: str, dies_in: str) -> None:
    first = SimulatedHost()
    made: list[str] = []

    @tool(effect=Effect(effect))
    async def work(name: str) -> str:
        if name == dies_in:
            await first.store.wait_for_entries(EntryKind.RESULT, 3)
            await first.crash()
            raise Shutdown("the process is gone")
        made.append(name)
        return f"did {name}"

    batch = tool_reply(*(call(name, "work", name=name) for name in NAMES))
    with pytest.raises(Shutdown):
        await first.executor.run(Agent(name="a", model=ScriptedModel(batch, "never"), tools=[work]), "go", run_id="r")
    assert sorted(made) == sorted(set(NAMES) - {dies_in})

    again: list[str] = []

    async def work_again(name: str) -> str:
        again.append(name)
        return f"did {name}"

    model = ScriptedModel(batch, "done")
    agent = Agent(name="a", model=model, tools=[Tool(work_again, name="work", effect=effect)])
    result = await SimulatedHost(first.inner).resume(agent, "r")
    assert again == [dies_in]
    assert [message.content for message in model.requests[0] if isinstance(message, ToolResult)] == [
        f"did {name}" for name in NAMES
    ]
    assert (result.output, result.steps) == ("done", 2)


@pytest.mark.parametrize("throttle", [timedelta(0), timedelta(hours=1)], ids=str)
async def test_a_released_batch_keeps_every_result_that_came(throttle: timedelta) -> None:
    first = SimulatedHost(settings=CheckpointSettings(save_interval=throttle))
    made: list[str] = []
    stop = asyncio.Event()

    @tool(effect="pure")
    async def work(name: str) -> str:
        if name == "d":
            await stop.wait()
            raise Shutdown("now")
        made.append(name)
        if len(made) == 3:
            stop.set()
        return name

    batch = tool_reply(*(call(name, "work", name=name) for name in NAMES))
    with pytest.raises(Shutdown):
        await first.executor.run(Agent(name="a", model=ScriptedModel(batch), tools=[work]), "go", run_id="r")
    made.clear()
    resumption = await SimulatedHost(first.inner).claim(Agent(name="a", model=ScriptedModel("x")), "r")
    assert set(resumption.state.results) == {"a", "b", "c"}
    assert resumption.state.own_usage.tool_calls == 3


async def test_a_finished_call_stays_made_when_a_listener_raises() -> None:
    host = SimulatedHost(ports=Ports(listener=StopsAtACall()))
    made: list[str] = []

    @tool
    async def pay() -> str:
        made.append("paid")
        return "receipt"

    model = ScriptedModel(tool_reply(call("1", "pay")), "done")
    agent = Agent(name="a", model=model, tools=[pay])
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id="r")
    result = await SimulatedHost(host.inner).resume(agent, "r")
    assert made == ["paid"]
    assert model.requests[-1][-1] == ToolResult(call_id="1", tool="pay", content="receipt")
    assert result.usage.tool_calls == 1


async def test_an_id_of_a_call_that_is_used_again_is_a_new_call() -> None:
    host = SimulatedHost()
    made: list[int] = []

    @tool
    async def count(n: int) -> int:
        made.append(n)
        return n

    turns = [tool_reply(call("same", "count", n=n)) for n in range(3)]
    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(*turns, Shutdown("now")), tools=[count]), "go", run_id="r"
        )
    model = ScriptedModel(*turns, tool_reply(call("same", "count", n=3)), "done")
    await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[count]), "r")
    assert made == [0, 1, 2, 3]


async def test_of_a_rewritten_agent_the_new_tools_are_used() -> None:
    host = SimulatedHost()

    @tool(effect="pure")
    async def work(name: str) -> str:
        raise Shutdown("now")

    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("1", "work", name="x"))), tools=[work]),
            "go",
            run_id="r",
        )

    async def other(name: str) -> str:
        return f"new {name}"

    model = ScriptedModel(tool_reply(), "done")
    await SimulatedHost(host.inner).resume(
        Agent(name="a", model=model, tools=[Tool(other, name="work", effect="pure")]), "r"
    )
    assert model.requests[0][-1] == ToolResult(call_id="1", tool="work", content="new x")


@pytest.mark.parametrize(
    ("policy", "error", "status"),
    [
        ("defer", MissingDefinition, RunStatus.INTERRUPTED),
        ("park", RunParked, RunStatus.PARKED),
        ("report", None, None),
    ],
)
async def test_a_tool_that_a_deploy_removed_meets_the_agents_policy(policy: Any, error: Any, status: Any) -> None:
    host = SimulatedHost()

    @tool(effect="pure")
    async def work() -> str:
        raise Shutdown("now")

    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("1", "work"))), tools=[work]), "go", run_id="r"
        )
    model = ScriptedModel(tool_reply(), "done")
    agent = Agent(name="a", model=model, missing_tools=policy)
    after = SimulatedHost(host.inner)
    if error is None:
        assert (await after.resume(agent, "r")).output == "done"
        last = model.requests[0][-1]
        assert isinstance(last, ToolResult)
        assert "There is no tool 'work'" in last.content
        return
    with pytest.raises(error):
        await after.resume(agent, "r")
    assert await host.get_statuses() == {"r": status}
    assert model.requests == []
