"""A worker process: it outlines a story, begins to write it, and ends it on request. A test kills the others.

With `print` it has a further run, and dies of SIGKILL in a call of it.
"""

import asyncio
import os
import signal
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


@tool(in_doubt="park")
def print_book(copies: int) -> str:
    """Print a novel."""
    os.kill(os.getpid(), signal.SIGKILL)
    return f"{copies} copies"


@tool(approval=True)
def sell(price: float) -> str:
    """Sell a novel."""
    return f"sold for {price}"


async def publish(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Print, then sell, then end."""
    results = sum(isinstance(message, ToolResult) for message in messages)
    calls = [
        [ToolCall(id="p1", name="print_book", arguments={"copies": 3})],
        [ToolCall(id="s1", name="sell", arguments={"price": 9.5})],
        [],
    ]
    return Reply(text="" if calls[results] else "Sold out.", tool_calls=calls[results], usage=_USAGE)


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


async def main(store: str, *options: str) -> None:
    novelist = Agent(name="novelist", model=Novelist(finishes="finish" in options), tools=[outline])
    publisher = Agent(name="publisher", model=publish, tools=[print_book, sell])
    agents = [publisher] if "print" in options else [novelist, publisher]
    async with App(agents, store) as app:
        if "print" in options:
            await app.submit("publisher", "Publish a novel.", run_id="book", caller_id="ed")
        else:
            await app.submit("novelist", "Write a novel.", run_id="novel", caller_id="ed")
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
