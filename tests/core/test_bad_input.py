"""What cannot work is refused with an error of its own that says what to do; nothing that was saved is lost."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.errors import RunExists, TranscriptTooLarge
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent, Bounds, Phase
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.errors import (
    DefinitionError,
    InvalidReply,
    InvalidRunId,
    PayloadError,
    RunAlreadyRunning,
    RunError,
    UnknownTool,
)
from holdfast.core.execution.executor import Executor
from holdfast.core.json_value import MAX_NESTING
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, ToolCall, ToolResult, Usage
from holdfast.core.run.result import Result
from holdfast.root_error import HoldfastError

KEPT = CheckpointSettings()


@tool(effect="pure")
async def look() -> str:
    return "seen"


# -- run ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run_id", ["", "x" * 201, "a b", "a/b", "ä", "a\n", "a\0", "\ud800", "a%", "..\\x"], ids=repr)
async def test_a_run_id_that_cannot_be_one_is_refused(run_id: str) -> None:
    model = ScriptedModel("never")
    with pytest.raises(InvalidRunId, match="use 1 to 200 of the characters A-Z a-z 0-9"):
        await Executor().run(Agent(name="a", model=model), "go", run_id=run_id)
    assert model.requests == []


@pytest.mark.parametrize("run_id", ["x", "x" * 200, "A-Z.a_z:0-9", "..", "-"])
async def test_every_other_run_id_is_taken(run_id: str) -> None:
    assert (
        await SimulatedHost().executor.run(Agent(name="a", model=ScriptedModel("done")), "go", run_id=run_id)
    ).run_id == run_id


async def test_a_run_id_that_is_live_already_is_refused_and_the_live_run_is_not_touched() -> None:
    host = SimulatedHost()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await go_on.wait()
        return Reply(text="first")

    first = asyncio.create_task(host.executor.run(Agent(name="a", model=model), "go", run_id="r"))
    await begun.wait()
    with pytest.raises(RunAlreadyRunning, match="wait for it, or choose another id"):
        await host.executor.run(Agent(name="a", model=ScriptedModel("second")), "go", run_id="r")
    go_on.set()
    assert (await first).output == "first"


async def test_who_begins_a_run_just_when_it_ends_is_not_told_of_a_shutdown() -> None:
    ends: list[Any] = []
    for turns in range(30):
        host, agent = SimulatedHost(), Agent(name="a", model=ScriptedModel("done"))
        first = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
        for _ in range(turns + 1):
            await asyncio.sleep(0)
        ends += await asyncio.gather(host.executor.run(agent, "go", run_id="r"), return_exceptions=True)
        await first
    assert {type(end) for end in ends} == {RunAlreadyRunning, Result}


async def test_a_run_id_that_is_live_in_another_process_is_refused_and_that_run_is_not_touched() -> None:
    first = SimulatedHost()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await go_on.wait()
        return Reply(text="first")

    running = asyncio.create_task(first.executor.run(Agent(name="a", model=model), "go", run_id="r"))
    await begun.wait()
    with pytest.raises(RunExists, match="choose another id, or resume that run"):
        await SimulatedHost(first.inner).executor.run(Agent(name="a", model=ScriptedModel("second")), "go", run_id="r")
    go_on.set()
    assert (await running).output == "first"


@pytest.mark.parametrize(
    "field",
    [
        {"caller_id": None}, {"caller_id": "a\0"}, {"agent_id": 7}, {"channel_id": "\ud800"}, {"labels": {"a": 1}},
        {"labels": {1: "a"}}, {"labels": {"a": "\0"}}, {"guild_id": b"x"}, {"model_tier": ["large"]},
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_run_is_has_to_be_text_that_every_store_can_keep(field: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="has to be text"):
        RunInfo(run_id="r", agent_name="a", **field)


def test_the_id_of_a_parent_has_to_be_a_run_id() -> None:
    with pytest.raises(InvalidRunId):
        RunInfo(run_id="r", agent_name="a", parent_run_id="")


# -- what cannot be stored --------------------------------------------------------------------------------------------


async def test_a_prompt_that_cannot_be_encoded_is_refused_before_the_model_is_asked() -> None:
    host = SimulatedHost()
    model = ScriptedModel("never")
    with fails_with(PayloadError, match="cannot be stored"):
        await host.executor.run(Agent(name="a", model=model), "half a pair \ud800")
    assert model.requests == []
    assert await host.list_records() == []


async def test_a_reply_with_absurd_usage_is_refused_and_nothing_that_was_saved_is_lost() -> None:
    host = SimulatedHost(settings=KEPT)
    model = ScriptedModel(tool_reply(call("1", "look")), Reply(text="x", usage=Usage(input_tokens=-1)))
    with fails_with(InvalidReply, match="input_tokens=-1"):
        await host.executor.run(Agent(name="a", model=model, tools=[look]), "go", run_id="r")
    assert await host.get_statuses() == {"r": RunStatus.FAILED}
    better = ScriptedModel("", "mended")
    result = await SimulatedHost(host.inner).resume(Agent(name="a", model=better, tools=[look]), "r")
    assert (result.output, result.steps) == ("mended", 2)
    assert better.requests[0][-1] == ToolResult(call_id="1", tool="look", content="seen")


async def test_a_transcript_over_the_cap_parks_the_run_and_it_continues_under_a_higher_cap() -> None:
    host = SimulatedHost(settings=CheckpointSettings(max_transcript_bytes=2000))
    model = ScriptedModel(tool_reply(call("1", "look")), tool_reply(call("2", "look"), text="x" * 2000), "done")
    agent = Agent(name="a", model=model, tools=[look])
    with pytest.raises(TranscriptTooLarge, match="compact it or raise max_transcript_bytes"):
        await host.executor.run(agent, "go", run_id="r")
    [record] = await host.list_records()
    assert record.status is RunStatus.PARKED
    assert record.reason.startswith("size: ")
    assert (await SimulatedHost(host.inner).resume(agent, "r")).output == "done"


@pytest.mark.parametrize(
    "value",
    [None, "\0", {"\0": "\0"}, 2**64, -(10**300), "\U0010ffff", [True, 1, 1.0], {"a": None}, -0.0, ""],
    ids=lambda value: repr(value)[:20],
)
async def test_hard_values_in_arguments_and_results_round_trip_through_a_resume(value: Any) -> None:
    host = SimulatedHost(settings=KEPT)
    got: list[Any] = []

    @tool(effect="pure")
    async def echo(value: Any) -> Any:
        got.append(value)
        return value

    ask = Reply(tool_calls=[ToolCall(id="1", name="echo", arguments={"value": value})])
    model = ScriptedModel(ask, LookupError("down"))
    with fails_with(LookupError):
        await host.executor.run(Agent(name="a", model=model, tools=[echo]), "go", run_id="r")
    after = ScriptedModel("", "done")
    await SimulatedHost(host.inner).resume(Agent(name="a", model=after, tools=[echo]), "r")
    [reply, result] = after.requests[0][-2:]
    assert isinstance(reply, Reply)
    assert isinstance(result, ToolResult)
    assert repr(reply.tool_calls[0].arguments) == repr({"value": value})
    assert repr(result.content) == repr(value) == repr(got[0])


@pytest.mark.parametrize(
    "value", ["\ud800", float("nan"), b"x", 10**5000, {1: 2}], ids=lambda value: type(value).__name__
)
async def test_arguments_that_would_be_changed_are_reported(value: Any) -> None:
    reply = Reply(tool_calls=[ToolCall(id="2", name="look", arguments={"value": value})])
    model = ScriptedModel(tool_reply(call("1", "look")), reply, "ok")
    result = await SimulatedHost(settings=KEPT).executor.run(Agent(name="a", model=model, tools=[look]), "", run_id="r")
    assert (result.output, result.steps) == ("ok", 3)
    last = model.requests[-1][-1]
    assert isinstance(last, ToolResult)
    assert last.content.startswith("The arguments cannot be read")


# -- replies of the wrong shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        None,
        "just text",
        {"text": "a dict"},
        ToolCall(id="1", name="look"),
        Reply(text=None),  # type: ignore[arg-type]
        Reply(text=b"x"),  # type: ignore[arg-type]
        Reply(tool_calls=None),  # type: ignore[arg-type]
        Reply(tool_calls="look"),  # type: ignore[arg-type]
        Reply(tool_calls={}),  # type: ignore[arg-type]
        Reply(tool_calls=iter([ToolCall(id="1", name="look")])),  # type: ignore[arg-type]
        Reply(tool_calls=["look"]),  # type: ignore[list-item]
        Reply(tool_calls=[{"id": "1", "name": "look"}]),  # type: ignore[list-item]
        Reply(tool_calls=[ToolCall(id="", name="look")]),
        Reply(tool_calls=[ToolCall(id="1", name="")]),
        Reply(tool_calls=[ToolCall(id=1, name="look")]),  # type: ignore[arg-type]
        Reply(tool_calls=[ToolCall(id="1", name=None)]),  # type: ignore[arg-type]
        Reply(tool_calls=[ToolCall(id="1", name="look"), ToolCall(id="1", name="look")]),
        Reply(text="x", usage=None),  # type: ignore[arg-type]
        Reply(text="x", usage=Usage(input_tokens=1.5)),  # type: ignore[arg-type]
        Reply(text="x", usage=Usage(cost_usd=float("nan"))),
        Reply(text="x", usage=Usage(cost_usd="0.1")),  # type: ignore[arg-type]
    ],
)
async def test_a_reply_of_the_wrong_shape_is_refused_and_nothing_that_was_saved_is_lost(reply: Any) -> None:
    host = SimulatedHost(settings=KEPT)

    async def odd(messages: Sequence[Message]) -> Reply:
        return reply  # type: ignore[no-any-return]

    with fails_with(InvalidReply, match=r"return a holdfast Reply|has to|have to|wrong type|share an id|usage of"):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(tool_reply(call("1", "look")), odd), tools=[look]), "", run_id="r"
        )
    result = await SimulatedHost(host.inner).resume(
        Agent(name="a", model=ScriptedModel("", "better"), tools=[look]), "r"
    )
    assert (result.output, result.steps) == ("better", 2)


# -- definitions ------------------------------------------------------------------------------------------------------


def test_an_unknown_tool_in_a_phase_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnknownTool, match=r"no tool 'fly'; known: look"):
        Agent(name="a", model=ScriptedModel("x"), tools=[look], phases=[Phase(name="p", tools=["fly"])])


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"model": None},
        {"tools": [look, look]},
        {"model": None, "phases": [Phase(name="p")]},
        {"phases": [Phase(name="p", tools=[look, "look"])], "tools": [look]},
    ],
)
def test_an_agent_that_cannot_work_is_refused_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Agent(**{"name": "a", "model": ScriptedModel("x"), **options})


@pytest.mark.parametrize(
    "bounds",
    [{"max_steps": 0}, {"max_repeats": 0}, {"max_runtime": timedelta(0)}, {"max_runtime": timedelta(seconds=-1)}],
    ids=repr,
)
def test_bounds_that_no_run_could_keep_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError):
        Bounds(**bounds)


@pytest.mark.parametrize(
    "error", [InvalidRunId, RunAlreadyRunning, PayloadError, UnknownTool, InvalidReply, TranscriptTooLarge, RunExists]
)
def test_all_of_these_are_of_one_tree(error: type[Exception]) -> None:
    assert issubclass(error, RunError)
    assert issubclass(error, HoldfastError)


async def test_a_result_that_is_nested_too_deeply_is_an_error_for_the_model() -> None:
    levels = 0

    @tool(effect="pure")
    async def look() -> Any:
        nested: Any = ["]"]
        for _ in range(levels - 1):
            nested = [nested]
        return nested

    # Around 980 a result alone can be encoded, and the message that contains it cannot.
    for levels in (MAX_NESTING, MAX_NESTING + 1, *range(930, 1_000), 100_000):
        model = ScriptedModel(tool_reply(call("1", "look")), "done")
        await SimulatedHost().executor.run(Agent(name="a", model=model, tools=[look]), "go")
        shown = model.requests[1][-1]
        assert isinstance(shown, ToolResult)
        assert shown.error == (levels > MAX_NESTING)
