"""Models to be compared. What they were asked is in the file `requests` of the working directory."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast import Agent, Reply, ToolCall, Usage

REQUESTS, OPEN = Path("requests"), Path("open")


def _asked(what: str) -> None:
    with REQUESTS.open("a") as file:
        file.write(f"{what}\n")


def _rival(name: str, *, waits: bool = False) -> Any:
    async def ask(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        turn = sum(isinstance(message, Reply) for message in messages)
        _asked(f"{name} {turn}")
        while waits and turn == 1 and not OPEN.exists():  # noqa: ASYNC110 - it is opened by another process
            await asyncio.sleep(0.01)
        usage = Usage(input_tokens=10, output_tokens=2, cost_usd=0.5)
        if turn == 0 and tools:
            arguments = {"path": "hello.txt", "content": f"hello from {name}\n"}
            return Reply(tool_calls=[ToolCall(id="1", name="write_file", arguments=arguments)], usage=usage)
        if turn == 1 and waits:
            return Reply(tool_calls=[ToolCall(id="1", name="read_file", arguments={"path": "hello.txt"})], usage=usage)
        return Reply(text=f"{name} says hello", usage=usage)

    return ask


quick = _rival("quick")
slow = _rival("slow", waits=True)
bad = Agent(name="bad", model=lambda messages, tools: 1 / 0)  # type: ignore[arg-type, return-value]
