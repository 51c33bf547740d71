"""Workflows for the crash kit."""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast import Agent, Phase, Reply, ToolCall, ToolResult, User, tool
from holdfast.core.agents.tool import ToolSchema
from holdfast.core.run.messages import Message
from holdfast.workflows import workflow


@tool(effect="pure")
async def look(city: str) -> str:
    return f"{city}?"


@tool(effect="idempotent")
async def book(offer: str) -> str:
    return f"{offer}!"


@workflow
async def trip(city: str) -> list[str]:
    offers = await asyncio.gather(*(look(f"{city} {number}") for number in range(3)))
    return [await book(offer) for offer in offers]


@tool(effect="transaction")
def reserve(seat: str, connection: Any = None) -> int:
    """Return how many rows the seat has, this one included."""
    connection.execute("create table if not exists reserved (seat text)")
    connection.execute("insert into reserved values (?)", (seat,))
    [[count]] = connection.execute("select count(*) from reserved where seat = ?", (seat,))
    return int(count)


@workflow
async def seats(row: str) -> list[int]:
    return [await reserve(f"{row}{number}") for number in range(3)]


async def talk(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    if isinstance(messages[-1], ToolResult):
        return Reply(text=f"{messages[-1].content}")
    [offer] = [message.text for message in messages if isinstance(message, User)]
    return Reply(tool_calls=[ToolCall(id=f"call {offer}", name="book", arguments={"offer": offer})])


phased = Agent(
    name="phased",
    model=talk,
    tools=[book],
    phases=[Phase(name="a"), Phase(name="b", agent=trip, prompt="$a"), Phase(name="c", prompt="$b")],
)
