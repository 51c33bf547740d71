"""Replies that no store can keep: the model reads why, and the run continues."""

import math
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, Reply, ToolCall, ToolResult, Usage, tool
from holdfast.core.errors import InvalidReply

HALF = "half a pair \ud83d"


@tool
async def note(text: Any) -> str:
    raise AssertionError("called with arguments that cannot be stored")


def nest(depth: int) -> Any:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    return value


NESTED = [{"text": nest(501)}, {"text": nest(5000)}]


@pytest.mark.parametrize(
    "arguments", [{"text": math.nan}, {"text": HALF}, {HALF: 1}, math.inf, b"raw", *NESTED], ids=range(7)
)
async def test_arguments_that_cannot_be_stored_are_reported_to_the_model(store_url: str, arguments: Any) -> None:
    model = ScriptedModel(Reply(tool_calls=[ToolCall(id="1", name="note", arguments=arguments)]), "sorry")
    async with App([Agent(name="a", model=model, tools=[note])], store_url) as app:
        assert (await app.run("a", "go", run_id="r")).output == "sorry"
    [result] = [message for message in model.requests[-1] if isinstance(message, ToolResult)]
    assert result.error
    assert "The arguments cannot be read" in result.content
    assert "The tool was not called." in result.content


async def test_half_a_character_in_a_text_is_replaced(store_url: str) -> None:
    async with App([Agent(name="a", model=ScriptedModel(Reply(text=HALF)))], store_url) as app:
        assert (await app.run("a", "go", run_id="r")).output == "half a pair \ufffd"
        assert (await app.result("r")).output == "half a pair \ufffd"


async def test_an_unknown_tool_with_half_a_character_in_its_name_is_reported() -> None:
    model = ScriptedModel(Reply(tool_calls=[ToolCall(id="1", name=HALF, arguments={})]), "sorry")
    async with App([Agent(name="a", model=model, tools=[note])], "memory:") as app:
        assert (await app.run("a", "go", run_id="r")).output == "sorry"
    [result] = [message for message in model.requests[-1] if isinstance(message, ToolResult)]
    assert "There is no tool" in result.content


@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=-1),
        Usage(output_tokens=-5, input_tokens=10),
        Usage(requests=-1),
        Usage(cost_usd=-0.01),
        Usage(cost_usd=math.inf),
        Usage(cost_usd=math.nan),
        Usage(cost_usd=1e12),
        Usage(input_tokens=10**15),
    ],
)
async def test_negative_and_absurd_usage_is_refused(usage: Usage) -> None:
    async with App([Agent(name="a", model=ScriptedModel(Reply(text="done", usage=usage)))], "memory:") as app:
        with fails_with(InvalidReply, match="usage"):
            await app.run("a", "go", run_id="r")
        assert (await app.get("r")).usage.total_tokens == 0
