"""Agents of pydantic-ai that are killed everywhere."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import BinaryContent, ModelRetry
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset
from tests.adapters.scripted_model import ScriptedModel, call

from holdfast import Agent, Phase, current_call
from holdfast.adapters.pydantic_ai import durable

# Each trial is a fork of the process that imports this module. Without this line each builds the adapter itself.
ModelMessagesTypeAdapter.rebuild()

tools: FunctionToolset[Any] = FunctionToolset()


@tools.tool_plain(metadata={"effect": "pure"})
async def look(city: str) -> str:
    return f"{city} is warm"


@tools.tool_plain(metadata={"effect": "idempotent"})
async def reserve(city: str) -> dict[str, str]:
    return {"reserved": city, "key": current_call().idempotency_key}


@tools.tool_plain
async def pay(city: str) -> bytes:
    return b"\xff" + city.encode()


@tools.tool_plain(metadata={"in_doubt": "park"})
def sign(city: str) -> BinaryContent:
    return BinaryContent(b"\x89PNG", media_type="image/png")


@tools.tool_plain(metadata={"effect": "pure"})
async def fail(city: str) -> str:
    raise ToolFailed(f"no {city}")


@tools.tool_plain
async def write(city: str) -> str:
    return f"wrote to {city}"


class Trip(BaseModel):
    cities: list[str]


def _trip() -> Agent:
    """Batches of every effect, refused calls, an output that is refused once, and a call beside the output."""
    batch = [call("c1", "look", city="Lyon"), call("c2", "pay", city="Lyon"), call("c3", "reserve", city="Lyon")]
    mixed = [call("c4", "pay", city="Faro"), call("c5", "fail", city="Faro"), call("c6", "look", town="Faro")]
    script = ScriptedModel(
        batch, mixed, [call("c7", "sign", city="Bari")], [call("c8", "final_result", cities=[])],
        [call("c9", "reserve", city="Bari"), call("c10", "final_result", cities=["Lyon", "Bari"])],
    )  # fmt: skip
    agent = PydanticAIAgent(
        script.model, name="trip", output_type=Trip, instructions="Plan.", retries=3, toolsets=[tools]
    )

    @agent.output_validator
    def not_empty(output: Trip) -> Trip:
        if not output.cities:
            raise ModelRetry("name some cities")
        return output

    return durable(agent)


trip = _trip()


def _everything() -> Agent:
    """Calls tools at once, each time with the same call ids, as `TestModel` does."""
    model = TestModel(call_tools=["look", "reserve", "write"])
    return durable(PydanticAIAgent(model, name="everything", toolsets=[tools]))


everything = _everything()


def _phased() -> Agent:
    def reply(messages: list[ModelMessage], info: Any) -> ModelResponse:
        phase = "search" if "Search" in str(messages[0].parts) else "book"
        if len(messages) > 1:
            return ModelResponse(parts=[TextPart(f"{phase} is done")])
        return ModelResponse(
            parts=[call(f"{phase}-1", "look", city="Lyon"), call(f"{phase}-2", "reserve", city="Lyon")]
        )

    phases = [Phase(name="search", prompt="Search $prompt"), Phase(name="book", prompt="Book $search")]
    return replace(durable(PydanticAIAgent(FunctionModel(reply), name="phased", toolsets=[tools])), phases=phases)


phased = _phased()


def _parent() -> list[Agent]:
    below = ScriptedModel([call("b1", "pay", city="Nice")], "child is done")
    child = durable(PydanticAIAgent(below.model, name="child", toolsets=[tools]))
    script = ScriptedModel([call("c1", "delegate"), call("c2", "look", city="Bonn")], "done")
    agent = PydanticAIAgent(script.model, name="parent", toolsets=[tools])

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def delegate() -> str:
        return str((await current_call().run(child, "below")).output)

    return [durable(agent), child]


parent = _parent()


def _compacting() -> Agent:
    def reply(messages: list[ModelMessage], info: Any) -> ModelResponse:
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
        number = max((int(part.tool_call_id[1:]) for part in calls), default=0) + 1
        answer = TextPart(f"done after {len(messages)} messages")
        return ModelResponse(parts=[call(f"c{number}", "look", city=f"{number}")] if number < 5 else [answer])

    async def keep_last(messages: Sequence[Any]) -> Sequence[Any] | None:
        return [messages[0], *messages[-2:]] if len(messages) > 3 else None

    return durable(PydanticAIAgent(FunctionModel(reply), name="compacting", toolsets=[tools]), compact=keep_last)


compacting = _compacting()
