"""A process that works and sends messages to one conversation: `python -m tests.runtime.operations.chat_worker`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.scripted_model import call, tool_reply

from holdfast import Agent, App, Reply, ToolResult, User, tool
from holdfast.core import Message, ToolSchema

COUNT = 5


def make_agent(ledger: Path) -> Agent:
    """An agent that notes each message in the ledger, once, and answers with the result."""

    @tool
    async def note(text: str) -> str:
        with ledger.open("a") as file:
            file.write(f"{text}\n")
            os.fsync(file.fileno())
        return "noted"

    return Agent(name="clerk", model=reply, tools=[note])


async def reply(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    asked = [message.text for message in messages if isinstance(message, User)][-1]
    if isinstance(messages[-1], ToolResult):
        return Reply(text=f"{asked} {messages[-1].content}")
    return tool_reply(call("1", "note", text=asked))


async def main(url: str, ledger: str, sender: str) -> None:
    async with App([make_agent(Path(ledger))], url) as app:
        print("ready", flush=True)
        chat = app.conversation("clerk", "shared")
        turns = await asyncio.gather(*(chat.send(f"{sender}{n}", id=f"{sender}{n}") for n in range(COUNT)))
        for turn in turns:
            print(turn.number, turn.output, flush=True)
        print("done", flush=True)
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
