"""An agent of pydantic-ai, to be killed everywhere like our own."""

from typing import Any

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast.adapters.pydantic_ai import durable

BATCHES = [["look"], ["book", "look", "reserve"], ["book"]]


def _model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Asks for one batch after another; answers with what it heard."""
    done = sum(isinstance(message, ModelResponse) for message in messages)
    if done < len(BATCHES):
        # A model of a test has to name its calls itself: pydantic-ai would make up another id for every run.
        return ModelResponse(
            parts=[
                ToolCallPart(name, {"city": "Porto"}, tool_call_id=f"{name}-{done}-{place}")
                for place, name in enumerate(BATCHES[done])
            ]
        )
    heard = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(parts=[TextPart("; ".join(str(part.content) for part in heard))])


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


agent = durable(_agent, effects={"look": "pure", "reserve": "idempotent"})
