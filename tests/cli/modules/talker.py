"""An agent of pydantic-ai for chats, without a provider. It streams, pays with approval, and may stop in the middle."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import ask_person
from holdfast.adapters.pydantic_ai import durable


async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
    """Answer the last message: `pay`, `ask` and `slow` are special, all else is repeated word by word."""
    last = messages[-1]
    assert isinstance(last, ModelRequest)
    results = [str(part.content) for part in last.parts if isinstance(part, ToolReturnPart)]
    text = " ".join(str(part.content) for part in last.parts if isinstance(part, UserPromptPart))
    if results:
        yield f"It says: {', '.join(results)}"
    elif text == "pay":
        yield "One moment. "
        yield {1: DeltaToolCall("pay", '{"amount": 900, "to": "bob"}', tool_call_id="c1")}
    elif text == "ask":
        yield {0: DeltaToolCall("ask_person", '{"question": "Which colour?"}', tool_call_id="c2")}
    else:
        for word in f"You said {text}".split():
            yield f"{word} "
        if text == "slow":
            while not Path("open").exists():  # noqa: ASYNC110 - another process opens it
                await asyncio.sleep(0.01)
            yield "at last"


inner = Agent(FunctionModel(stream_function=stream), name="talker")


@inner.tool_plain(requires_approval=True)
async def pay(amount: int, to: str) -> str:
    with Path("effects").open("a") as file:  # noqa: ASYNC230
        file.write(f"paid {amount} to {to}\n")
    return f"paid {amount} to {to}"


agent = durable(inner, stream=True, extra_tools=[ask_person])
