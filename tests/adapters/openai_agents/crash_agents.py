"""Agents of the OpenAI Agents SDK that are killed everywhere."""

from typing import Any

from agents import Agent as SDKAgent
from agents import ToolOutputImage, function_tool, handoff, set_tracing_disabled
from pydantic import BaseModel
from tests.adapters.openai_agents.scripted_model import ScriptedModel, call

from holdfast import Agent, current_call
from holdfast.adapters.openai_agents import ToolPolicy, durable

set_tracing_disabled(True)

POLICIES = {"look": ToolPolicy("pure"), "reserve": ToolPolicy("idempotent"), "fail": ToolPolicy("pure")}


@function_tool
async def look(city: str) -> str:
    return f"{city} is warm"


@function_tool
async def reserve(city: str) -> dict[str, str]:
    return {"reserved": city, "key": current_call().idempotency_key}


@function_tool
async def pay(city: str) -> tuple[str, int]:
    return city, 5


@function_tool
def sign(city: str) -> ToolOutputImage:
    return ToolOutputImage(image_url="data:image/png;base64,iVBORw0KGgo=")


@function_tool
async def fail(city: str) -> str:
    raise ValueError(f"no {city}")


TOOLS: list[Any] = [look, reserve, pay, sign, fail]


class Trip(BaseModel):
    cities: list[str]


def _trip() -> Agent:
    """Batches of every effect, a call that fails, and a structured output."""
    batch = [call("c1", "look", city="Lyon"), call("c2", "pay", city="Lyon"), call("c3", "reserve", city="Lyon")]
    mixed = [call("c4", "pay", city="Faro"), call("c5", "fail", city="Faro"), call("c6", "look", town="Faro")]
    model = ScriptedModel(batch, mixed, [call("c7", "sign", city="Bari")], '{"cities": ["Lyon", "Bari"]}')
    agent = SDKAgent(name="trip", model=model, tools=TOOLS, output_type=Trip, instructions="Plan.")
    return durable(agent, tools=POLICIES | {"sign": ToolPolicy(in_doubt="park")})


trip = _trip()


def _desk() -> Agent:
    """Hands over to another agent, and back, with a call beside the handoff."""

    async def on_handoff(context: Any) -> None:
        context.context.append("handed over")

    clerk: SDKAgent[Any] = SDKAgent(name="clerk", tools=TOOLS)
    clerk.model = ScriptedModel([call("c4", "pay", city="Nice"), call("c5", "transfer_to_desk")])
    desk = SDKAgent(
        name="desk",
        model=ScriptedModel(
            [call("c1", "look", city="Nice"), call("c2", "pay", city="Bonn")], [call("c3", "transfer_to_clerk")], "done"
        ),
        tools=TOOLS,
        handoffs=[handoff(clerk, on_handoff=on_handoff)],
    )
    clerk.handoffs = [desk]
    return durable(desk, tools=POLICIES | {"transfer_to_clerk": ToolPolicy("idempotent")}, context=lambda info: [])


desk = _desk()


def _stopping() -> Agent:
    """A tool's result is the output."""
    model = ScriptedModel([call("c1", "look", city="Lyon")], [call("c2", "pay", city="Lyon")])
    agent = SDKAgent(name="stopping", model=model, tools=TOOLS, tool_use_behavior={"stop_at_tool_names": ["pay"]})
    return durable(agent, tools=POLICIES)


stopping = _stopping()
