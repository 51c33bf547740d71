"""The native loop: ask the model, call the tools it asks for, repeat."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.core.agents.agent import Agent
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool, ToolSchema, tool
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.errors import RunError, ToolFailed
from holdfast.core.execution.executor import Executor
from holdfast.core.run.messages import Message, Reply, System, ToolResult, Usage, User


async def results_of(model: ScriptedModel, *tools: Tool) -> list[ToolResult]:
    """Run a script to its end in memory; the tool results that its last turn was shown."""
    await Executor().run(Agent(name="a", model=model, tools=tools), "go")
    return [message for message in model.requests[-1] if isinstance(message, ToolResult)]


async def test_an_answer_ends_the_run() -> None:
    model = ScriptedModel("forty-two")
    result = await Executor().run(Agent(name="a", model=model, instructions="be brief"), "what?", run_id="r")
    assert (result.run_id, result.output, result.steps) == ("r", "forty-two", 1)
    assert model.requests == [(System("be brief"), User("what?"))]
    assert list(result.messages) == [System("be brief"), User("what?"), Reply(text="forty-two")]


async def test_the_model_is_offered_the_tools_and_shown_their_results_in_the_order_of_its_calls() -> None:
    @tool(effect="pure")
    async def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    model = ScriptedModel(tool_reply(call("x", "double", n=1), call("y", "double", n=2), text="let me see"), "done")
    result = await Executor().run(Agent(name="a", model=model, tools=[double]), "go")
    assert model.offered_tools[0] == (double.schema,)
    assert model.requests[1] == (
        User("go"),
        tool_reply(call("x", "double", n=1), call("y", "double", n=2), text="let me see"),
        ToolResult(call_id="x", tool="double", content=2),
        ToolResult(call_id="y", tool="double", content=4),
    )
    assert result.steps == 2


async def test_usage_adds_up_over_steps_and_counts_requests_and_tool_calls() -> None:
    @tool(effect="pure")
    async def look() -> None: ...

    model = ScriptedModel(
        tool_reply(call("1", "look"), call("2", "look"), usage=Usage(input_tokens=10, output_tokens=1, cost_usd=0.5)),
        Reply(
            text="done", usage=Usage(input_tokens=20, output_tokens=2, reasoning_tokens=1, requests=3, cost_usd=0.25)
        ),
    )
    result = await Executor().run(Agent(name="a", model=model, tools=[look]), "go")
    assert result.usage == Usage(
        input_tokens=30, output_tokens=3, reasoning_tokens=1, requests=4, tool_calls=2, cost_usd=0.75
    )


@pytest.mark.parametrize("effect", ["pure", "once"])
async def test_parallel_tool_calls_of_one_reply_run_concurrently(effect: str) -> None:
    """Each waits until all have begun: one after the other, none would ever end."""
    begun: list[str] = []
    all_begun = asyncio.Event()

    @tool(effect=Effect(effect))
    async def meet(name: str) -> str:
        begun.append(name)
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        return name

    host = SimulatedHost()
    model = ScriptedModel(tool_reply(*(call(name, "meet", name=name) for name in "abc")), "done")
    await host.executor.run(Agent(name="a", model=model, tools=[meet]), "go")
    assert [result.content for result in model.requests[-1] if isinstance(result, ToolResult)] == ["a", "b", "c"]


async def test_results_keep_the_order_of_the_calls_when_they_end_in_another() -> None:
    ended: list[str] = []
    turn = {"a": asyncio.Event(), "b": asyncio.Event(), "c": asyncio.Event()}
    turn["c"].set()

    @tool(effect="pure")
    async def wait_for_turn(name: str) -> str:
        await turn[name].wait()
        ended.append(name)
        turn[{"c": "b", "b": "a", "a": "c"}[name]].set()
        return name

    results = await results_of(
        ScriptedModel(tool_reply(*(call(n, "wait_for_turn", name=n) for n in "abc")), "done"), wait_for_turn
    )
    assert ended == ["c", "b", "a"]
    assert [result.content for result in results] == ["a", "b", "c"]


# -- what the model got wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "missing required field `n`"),
        ({"n": "one"}, "Expected `int`, got `str` - at `$.n`"),
        ({"n": 1, "m": 2}, "unknown field `m`"),
        (None, "Expected `object`, got `null`"),
        ([1], "Expected `object`, got `array`"),
        ("{}", "Expected `object`, got `str`"),
    ],
)
async def test_arguments_that_do_not_fit_are_reported_to_the_model(arguments: Any, text: str) -> None:
    called: list[int] = []

    @tool
    async def double(n: int) -> None:
        called.append(n)

    wrong = Reply(tool_calls=[_call_with("x", "double", arguments)])
    [result] = await results_of(ScriptedModel(wrong, "sorry"), double)
    assert result.error
    assert text in result.content
    assert "was not called" in result.content
    assert called == []


def _call_with(call_id: str, name: str, arguments: Any) -> Any:
    made = call(call_id, name)
    return type(made)(id=made.id, name=made.name, arguments=arguments)


async def test_a_tool_that_does_not_exist_is_reported_to_the_model_with_those_that_do() -> None:
    @tool
    async def double(n: int) -> None: ...

    [result] = await results_of(ScriptedModel(tool_reply(call("x", "triple", n=1)), "sorry"), double)
    assert result == ToolResult(
        call_id="x", tool="triple", content="There is no tool 'triple'. Known tools: double.", error=True
    )


async def test_one_wrong_call_of_a_batch_does_not_keep_the_others_from_being_made() -> None:
    @tool
    async def double(n: int) -> int:
        return 2 * n

    results = await results_of(
        ScriptedModel(tool_reply(call("x", "double", n="?"), call("y", "double", n=2)), "sorry"), double
    )
    assert [(result.error, result.call_id) for result in results] == [(True, "x"), (False, "y")]


# -- tools that raise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [True, False])
async def test_a_tool_that_raises_gives_the_model_an_error(threaded: bool) -> None:
    def broken() -> None:
        raise LookupError("no such row")

    async def broken_async() -> None:
        raise LookupError("no such row")

    made = tool(name="broken")(broken if threaded else broken_async)
    [result] = await results_of(ScriptedModel(tool_reply(call("x", "broken")), "sorry"), made)
    assert result == ToolResult(call_id="x", tool="broken", content="LookupError: no such row", error=True)


async def test_a_tool_that_says_so_ends_the_run_with_its_error_and_its_siblings_are_ended() -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    @tool(effect="pure")
    async def sibling() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @tool(on_error="raise", effect="pure")
    async def fragile() -> None:
        await begun.wait()
        raise LookupError("gone")

    model = ScriptedModel(tool_reply(call("x", "sibling"), call("y", "fragile")), "never")
    with fails_with(ToolFailed, match="fragile"):
        await Executor().run(Agent(name="a", model=model, tools=[sibling, fragile]), "go")
    assert ended.is_set()
    assert len(model.requests) == 1


async def test_a_result_that_cannot_be_stored_is_reported_to_the_model() -> None:
    @tool
    async def picture() -> bytes:
        return b"\x89PNG"

    [result] = await results_of(ScriptedModel(tool_reply(call("x", "picture")), "sorry"), picture)
    assert result.error
    assert "the result of picture would come back changed" in result.content


async def test_a_cancel_that_a_tool_lets_out_is_reported_to_the_model_like_any_error() -> None:
    @tool
    async def impatient() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    [result] = await results_of(ScriptedModel(tool_reply(call("x", "impatient")), "sorry"), impatient)
    assert (result.error, result.content) == (True, "CancelledError: ")


async def fail_in_a_group() -> None:
    async def broken() -> None:
        raise OSError("404")

    async with asyncio.TaskGroup() as group:
        group.create_task(broken())


async def test_a_failed_task_group_of_a_tool_is_reported_to_the_model_like_any_error() -> None:
    """Up to Python 3.12 it leaves its task as if the task had been cancelled."""

    @tool
    async def fetch() -> None:
        await fail_in_a_group()

    @tool
    async def divide() -> float:
        return 1 / 0

    model = ScriptedModel(tool_reply(call("x", "fetch")), tool_reply(call("y", "divide")), "sorry")
    results = await results_of(model, fetch, divide)
    assert [result.content.partition(":")[0] for result in results] == ["ExceptionGroup", "ZeroDivisionError"]


async def test_a_cancel_that_a_tool_lets_out_after_a_failed_task_group_is_reported_to_the_model() -> None:
    @tool
    async def impatient() -> None:
        with contextlib.suppress(BaseExceptionGroup):
            await fail_in_a_group()
        raise asyncio.CancelledError

    [result] = await results_of(ScriptedModel(tool_reply(call("x", "impatient")), "sorry"), impatient)
    assert (result.error, result.content) == (True, "CancelledError: ")


async def test_an_error_of_the_model_comes_out_as_it_is() -> None:
    with fails_with(ValueError, match="400"):
        await Executor().run(Agent(name="a", model=ScriptedModel(ValueError("400"))), "go")


# -- what a tool can know ---------------------------------------------------------------------------------------------


async def test_a_tool_knows_the_call_it_is_in_and_its_idempotency_key() -> None:
    seen: list[ToolContext] = []

    @tool
    def in_a_thread(n: int) -> None:
        seen.append(current_call())

    @tool
    async def in_the_loop(n: int) -> None:
        seen.append(await asyncio.create_task(_look()))

    async def _look() -> ToolContext:
        return current_call()

    model = ScriptedModel(
        tool_reply(call("x", "in_a_thread", n=1), call("y", "in_the_loop", n=2)),
        tool_reply(call("x", "in_a_thread", n=3)),
        "done",
    )
    await Executor().run(Agent(name="a", model=model, tools=[in_a_thread, in_the_loop]), "go", run_id="r")
    seen.sort(key=lambda context: context.arguments["n"])
    assert [(context.run_id, context.step, context.call_id, context.tool) for context in seen] == [
        ("r", 1, "x", "in_a_thread"),
        ("r", 1, "y", "in_the_loop"),
        ("r", 2, "x", "in_a_thread"),
    ]
    keys = [context.idempotency_key for context in seen]
    assert len(set(keys)) == 3, "an id that the model uses again in a later step is another call"


def test_outside_of_a_tool_there_is_no_call() -> None:
    with pytest.raises(RunError, match="only inside a tool"):
        current_call()


async def test_the_model_cannot_change_the_conversation_through_what_it_returned() -> None:
    given = {"n": [1]}

    @tool(effect="pure")
    async def keep(n: list[int]) -> None:
        given["n"].append(2)

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if isinstance(messages[-1], ToolResult):
            return Reply(text=str(messages[-2]))
        return Reply(tool_calls=[_call_with("x", "keep", given)])

    result = await Executor().run(Agent(name="a", model=model, tools=[keep]), "go")
    assert "[1]" in result.output
    assert "[1, 2]" not in result.output
