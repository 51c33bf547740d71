"""A pydantic-ai agent that streams its replies, for the tests of the protocols."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from holdfast.adapters.pydantic_ai import durable
from holdfast.core.agents.agent import AgentSource


def make_assistant(folder: Path) -> AgentSource:
    """Answers in pieces. `pay` calls a tool that needs an approval; `slow` waits for the test in its first reply."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        place, text = _find_question(messages)
        since = len(messages) - place - 1
        with (folder / "requests").open("a") as file:
            file.write(f"{text} {since}\n")
        if text == "pay" and not since:
            yield "Let me pay. "
            yield {0: DeltaToolCall("pay", '{"amount": 5}', tool_call_id=f"pay-{place}")}
            return
        yield "You "
        if text == "slow":
            (folder / "cut").touch()
            while not (folder / "open").exists():  # noqa: ASYNC110 - the test opens it
                await asyncio.sleep(0.01)
        for word in f"said {text}.".split():
            yield f"{word} "

    agent = Agent(FunctionModel(stream_function=answer), name="assistant")

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        """Pay."""
        with (folder / "ledger").open("a") as file:
            file.write(f"paid {amount}\n")
        return "paid"

    return durable(agent, name="assistant", stream=True)


def _find_question(messages: list[ModelMessage]) -> tuple[int, str]:
    """The place and the text of the last message of the user."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, ModelRequest):
            for part in message.parts:
                if isinstance(part, UserPromptPart):
                    return place, str(part.content)
    raise ValueError("nothing was asked")
