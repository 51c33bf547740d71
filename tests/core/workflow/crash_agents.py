"""Workflows for the crash kit."""

import asyncio

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
