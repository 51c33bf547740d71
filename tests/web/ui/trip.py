"""A workflow that does everything its page shows: equal calls, a child run, a saga that is undone, a wait, a race."""

import asyncio
from typing import Any

from tests.scripted_model import ScriptedModel

from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import ToolContext
from holdfast.workflows import StepFailed, ask_person, first, map_items, run_agent, saga, sleep, wait_for, workflow

travel = Agent(name="travel", model=ScriptedModel("Casa do Largo"))


async def cancel_booking(call: ToolContext, booking: Any) -> None:
    """Undo a flight or a car."""


@tool(effect="pure")
async def price_for(city: str, day: int) -> int:
    await asyncio.sleep(0)
    return 100 + day


@tool(undo=cancel_booking)
async def book_flight(number: str, day: str) -> dict[str, str]:
    return {"pnr": f"K3XQ7P {day}"}


@tool
async def book_hotel(name: str, day: str) -> dict[str, str]:
    if day == "1 June":
        raise LookupError("no room on 2 June")
    return {"booking": "h-20117"}


@tool(effect="idempotent", undo=cancel_booking)
async def rent_car(size: str, day: str) -> dict[str, str]:
    return {"booking": "c-8812"}


async def book(day: str) -> None:
    async with saga():
        await asyncio.gather(book_flight("TP 533", day), rent_car("small", day), return_exceptions=True)
        await asyncio.gather(book_hotel("Casa do Largo", day), price_for("Faro", 900))


@workflow
async def find_rooms() -> Any:
    """Show progress: one item fails, one waits for a signal."""

    async def find_room(day: int) -> Any:
        return await (wait_for("late") if day == 2 else book_hotel("Casa do Largo", f"{day} June"))

    return await map_items(find_room, range(4), return_exceptions=True) and "searched"


@workflow(name="book_trip")
async def book_trip(city: str, nights: int) -> dict[str, Any]:
    async def get_price(day: int) -> Any:
        return await price_for(city, day)

    prices = await map_items(get_price, range(24), limit=8)
    hotel = await run_agent(travel, "Which hotel near the fair?")
    try:
        await book("1 June")
    except StepFailed:
        await book(await wait_for("dates"))
    _, answer = await first(agreed=ask_person("All fine?", options=["yes", "no"]), late=sleep(86400))
    return {"city": city, "nights": nights, "hotel": hotel, "paid": sum(prices), "answer": answer}
