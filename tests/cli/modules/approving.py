"""An agent of pydantic-ai with calls that need an approval, without a provider."""

from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

SCRIPT = [
    ModelResponse(
        [
            ThinkingPart("search first"),
            TextPart("Let me look."),
            ToolCallPart("lookup", '{"word": "Lisbon"}', "c1"),
            ToolCallPart("lookup", {"word": ""}, "c2"),
        ]
    ),
    ModelResponse([ToolCallPart("pay", {"amount": 40}, "c3"), ToolCallPart("pay", {"amount": 5}, "c4")]),
    ModelResponse([TextPart("Booked.")]),
]


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return SCRIPT[sum(isinstance(message, ModelResponse) for message in messages)]


agent = Agent(
    FunctionModel(model), name="approving", system_prompt="You book.", output_type=[str, DeferredToolRequests]
)


@agent.tool_plain
async def lookup(word: str) -> dict[str, str]:
    if not word:
        raise ModelRetry("give a word")
    return {"found": word}


@agent.tool_plain(requires_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"
