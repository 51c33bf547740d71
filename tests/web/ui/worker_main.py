"""A worker process: it outlines a story, begins to write it, and ends it on request. A test kills the others."""

import asyncio
import sys
from collections.abc import Sequence

from holdfast.app import App
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.agents.tool_context import emit_text
from holdfast.core.run.messages import Message, Reply, ToolCall, ToolResult, Usage

_USAGE = Usage(input_tokens=1234, output_tokens=56, cost_usd=0.0123)


@tool(effect="pure")
def outline(chapters: int) -> str:
    """Outline a novel."""
    return f"{chapters} chapters"


class Novelist:
    """A model that writes a novel."""

    def __init__(self, *, finishes: bool) -> None:
        self._finishes = finishes

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if not any(isinstance(message, ToolResult) for message in messages):
            return Reply(tool_calls=[ToolCall(id="c1", name="outline", arguments={"chapters": 12})], usage=_USAGE)
        await emit_text("It was a dark and stormy night")
        if not self._finishes:
            await asyncio.Event().wait()
        return Reply(text="It was a dark and stormy night. The end.", usage=_USAGE)


async def main(store: str, *, finishes: bool) -> None:
    novelist = Agent(name="novelist", model=Novelist(finishes=finishes), tools=[outline])
    async with App([novelist], store) as app:
        await app.submit("novelist", "Write a novel.", run_id="novel", caller_id="ed")
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], finishes="finish" in sys.argv))
