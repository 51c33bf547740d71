"""The program of a worker that is killed: `python -m tests.core.execution.mail_worker URL LEDGER`."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Reply, ToolCall, ToolResult, User, current_call, tool, wait_for
from holdfast.core import Message, ToolSchema


def make_agent(ledger: Path) -> Agent:
    """An agent that pays with approval, waits for two signals, and returns all that it was sent."""

    @tool(approval=True)
    async def pay() -> str:
        with ledger.open("a") as file:
            file.write(f"{current_call().run_id}\n")
            os.fsync(file.fileno())
        return "paid"

    return Agent(name="mailed", model=reply, tools=[pay, wait_for])


async def reply(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    match sum(isinstance(message, Reply) for message in messages):
        case 0:
            first = ToolCall(id="1", name="wait_for", arguments={"name": "first"})
            return Reply(text="", tool_calls=(ToolCall(id="0", name="pay", arguments={}), first))
        case 1:
            return Reply(text="", tool_calls=(ToolCall(id="0", name="wait_for", arguments={"name": "second"}),))
    texts = [message.text for message in messages if isinstance(message, User)]
    return Reply(text=json.dumps([texts, [each.content for each in messages if isinstance(each, ToolResult)]]))


async def main(url: str, ledger: str) -> None:
    async with App([make_agent(Path(ledger))], url) as app:
        print("ready", flush=True)
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
