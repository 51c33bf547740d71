"""The sampler with a model that gives the call of every reply the same id."""

from collections.abc import Sequence
from typing import Any

from sample import TOOLS  # type: ignore[import-not-found]
from sample import model as careful

from holdfast import Agent, Reply, ToolCall


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    reply = await careful(messages, tools)
    calls = [ToolCall(id="c", name=call.name, arguments=call.arguments) for call in reply.tool_calls]
    return Reply(text=reply.text, tool_calls=calls, usage=reply.usage)


agent = Agent(name="forgetful", model=model, tools=TOOLS)
