"""Agents of pydantic-ai for crash tests. Their tools come from a palette, which has crash points in every call."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import ModelRetry
from pydantic_ai.messages import ModelMessage, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from tests.adapters.script import Script, call

from holdfast import Agent, Phase, RunInfo, current_call, tool
from holdfast.adapters.pydantic_ai import PydanticAILoop, durable
from holdfast.adapters.pydantic_ai.codec import PydanticAICodec
from holdfast.run.effects import DID_NOT_HAPPEN
from holdfast.run.tool import Tool

_VOLATILE = ("timestamp", "run_id", "conversation_id")


class TimelessCodec(PydanticAICodec):
    """Leaves out times and pydantic-ai's own run ids: transcripts are compared, and these are never the same."""

    def encode(self, message: Any) -> bytes:
        return msgspec.json.encode(_without(msgspec.json.decode(super().encode(message))))


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(each) for name, each in value.items() if name not in _VOLATILE}
    return [_without(each) for each in value] if isinstance(value, list) else value


class TimelessLoop(PydanticAILoop):
    _timeless = TimelessCodec()

    @property
    def codec(self) -> TimelessCodec:
        return self._timeless


def timeless(agent: Agent) -> Agent:
    loop = agent.loop
    assert isinstance(loop, PydanticAILoop)
    return replace(agent, loop=TimelessLoop(loop._agent, loop._options))


@tool(effect="pure")
async def look(city: str) -> str:
    return f"{city} is warm"


@tool(effect="idempotent")
async def reserve(city: str) -> dict[str, str]:
    return {"reserved": city, "key": current_call().idempotency_key}


@tool
async def pay(city: str) -> str:
    return f"paid {city}"


async def _sent(context: Any) -> Any:
    return DID_NOT_HAPPEN


@tool(in_doubt="park")
async def sign(city: str) -> str:
    return f"signed {city}"


@tool
def fail(city: str) -> str:
    raise LookupError(f"no {city}")


class Palette:
    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        return [look, reserve, pay, sign, fail]


def options() -> dict[str, Any]:
    return {"palette": Palette()}


class Trip(BaseModel):
    cities: list[str]


def _trip() -> Agent:
    """Batches of every effect, a refused call, an output that is refused once, and a call beside the output."""
    batch = [call("c1", "look", city="Lyon"), call("c2", "pay", city="Lyon"), call("c3", "reserve", city="Lyon")]
    mixed = [call("c4", "pay", city="Faro"), call("c5", "fail", city="Faro"), call("c6", "look", town="Faro")]
    script = Script(
        batch, mixed, [call("c7", "sign", city="Bari")], [call("c8", "final_result", cities=[])],
        [call("c9", "reserve", city="Bari"), call("c10", "final_result", cities=["Lyon", "Bari"])],
    )  # fmt: skip
    agent = PydanticAIAgent(script.model, name="trip", output_type=Trip, instructions="Plan.", retries=3)

    @agent.output_validator
    def not_empty(output: Trip) -> Trip:
        if not output.cities:
            raise ModelRetry("name some cities")
        return output

    return timeless(durable(agent))


trip = _trip()

#: Calls every tool at once, each time with the same call ids.
everything = timeless(durable(PydanticAIAgent(TestModel(call_tools=["look", "reserve", "pay"]), name="everything")))


def _phased() -> Agent:
    script = Script([call("c1", "look", city="Lyon"), call("c2", "pay", city="Lyon")], "found Lyon")
    phases = [Phase(name="search", prompt="Search $prompt"), Phase(name="book", prompt="Book $search")]
    return replace(timeless(durable(PydanticAIAgent(script.model, name="phased"))), phases=phases)


phased = _phased()


def _parent() -> list[Agent]:
    child = timeless(
        durable(PydanticAIAgent(Script([call("c1", "pay", city="Nice")], "child is done").model, name="child"))
    )
    agent = PydanticAIAgent(
        Script([call("c1", "delegate"), call("c2", "look", city="Bonn")], "done").model, name="parent"
    )

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def delegate() -> str:
        return str((await current_call().run(child, "below")).output)

    return [timeless(durable(agent)), child]


parent = _parent()


def _compacting() -> Agent:
    turn = {1: "look", 3: "pay", 5: "reserve", 2: "look", 4: "look"}

    def reply(messages: list[ModelMessage], info: Any) -> Any:
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
        number = max((int(part.tool_call_id[1:]) for part in calls), default=0) + 1
        name = turn.get(number)
        answer = f"done after {len(messages)} messages"
        return Script(answer if name is None else [call(f"c{number}", name, city="Lyon")])._reply([], info)

    async def keep_last(messages: Sequence[Any]) -> Sequence[Any] | None:
        return [messages[0], *messages[-2:]] if len(messages) > 5 else None

    return timeless(durable(PydanticAIAgent(FunctionModel(reply), name="compacting"), compact=keep_last))


compacting = _compacting()
