"""An agent of pydantic-ai for the crash test."""

from typing import Any

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast.adapters.pydantic_ai import ToolPolicy, durable

# Each trial is a fork of the process that imports this module. Without this line each builds the adapter itself.
ModelMessagesTypeAdapter.rebuild()

BATCHES = [["look"], ["book", "look", "reserve"], ["book"]]


def _model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Ask for one batch of tools after another, then answer with their results."""
    done = sum(isinstance(message, ModelResponse) for message in messages)
    if done < len(BATCHES):
        # Without ids from the model, pydantic-ai generates new ones in every run.
        return ModelResponse(
            parts=[
                ToolCallPart(name, {"city": "Porto"}, tool_call_id=f"{name}-{done}-{index}")
                for index, name in enumerate(BATCHES[done])
            ]
        )
    results = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(parts=[TextPart("; ".join(str(part.content) for part in results))])


_agent = PydanticAIAgent(FunctionModel(_model), name="pydantic")


@_agent.tool_plain
def look(city: str) -> str:
    return f"{city} is fine"


@_agent.tool_plain
def reserve(city: str) -> str:
    return f"reserved {city}"


@_agent.tool_plain
async def book(city: str) -> dict[str, Any]:
    return {"booked": city}


agent = durable(_agent, tools={"look": ToolPolicy("pure"), "reserve": ToolPolicy("idempotent")})
