"""A web service whose request waits for a run. The file `ledger` has a line for each model call and each booking."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import Agent, App, Reply, ToolCall, tool
from holdfast.core import Message, ToolSchema

NIGHTS = 3


def record(line: str) -> None:
    with Path("ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


@tool
async def book(night: int) -> str:
    """Book a night. The second one takes until the test opens the gate."""
    record(f"book {night}")
    while night == 1 and not Path("gate").exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)
    return "booked"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    done = sum(isinstance(message, Reply) for message in messages)
    record(f"ask {done}")
    if done == NIGHTS:
        return Reply(text=f"{done} nights are booked")
    return Reply(tool_calls=[ToolCall(id=f"call-{done}", name="book", arguments={"night": done})])


app = App([Agent(name="trip", model=model, tools=[book])])


@asynccontextmanager
async def lifespan(server: Starlette) -> AsyncIterator[None]:
    async with app:
        yield


async def travel(request: Request) -> JSONResponse:
    body = await request.json()
    result = await app.run("trip", body["prompt"], run_id=body["id"])
    return JSONResponse({"output": result.output})


server = Starlette(routes=[Route("/trips", travel, methods=["POST"])], lifespan=lifespan)
