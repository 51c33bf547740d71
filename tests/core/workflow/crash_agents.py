"""Workflows for the crash kit."""

import asyncio
from typing import Any

from holdfast import tool
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
