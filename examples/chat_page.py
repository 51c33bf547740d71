"""A chat page with FastAPI and plain JavaScript. Close the tab, kill the server, start it again: nothing is lost.

uvicorn examples.chat_page:server --timeout-graceful-shutdown 1

Then open http://127.0.0.1:8000/. The page keeps the id of its chat in its address.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse

from holdfast import Agent, App, Reply, ToolCall, ToolResult, User, tool
from holdfast.core import Message, ToolSchema
from holdfast.web.api import make_api
from holdfast.web.auth import Principal

PAGE = Path(__file__).with_name("chat_page.html")


@tool(approval=True)
async def order(item: str) -> str:
    """Order something. A person approves it first."""
    return f"ordered {item}"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a provider."""
    last = messages[-1]
    if isinstance(last, ToolResult):
        return Reply(text=f"Done: {last.content}.")
    assert isinstance(last, User)
    if last.text.startswith("order "):
        call = ToolCall(id=f"order-{len(messages)}", name="order", arguments={"item": last.text[6:]})
        return Reply(text="I ask first.", tool_calls=[call])
    return Reply(text=f"You said: {last.text}")


#: Uses the default store: HOLDFAST_STORE, or SQLite under .holdfast/ in the working directory.
app = App([Agent(name="shop", model=model, tools=[order])])


def authorize(request: Request) -> Principal:
    """Stands for your sessions: every visitor is the same guest."""
    return Principal(caller_id="guest")


@asynccontextmanager
async def lifespan(server: FastAPI) -> AsyncIterator[None]:
    async with app:  # while it is open the App is a worker: it answers the messages
        yield


server = FastAPI(lifespan=lifespan)
server.mount("/api", make_api(app, authorize=authorize))


@server.get("/")
def show_page() -> FileResponse:
    return FileResponse(PAGE)
