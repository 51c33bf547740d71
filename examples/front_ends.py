"""A pydantic-ai agent behind AG-UI and the Vercel AI SDK: the run survives its tab and its server.

uvicorn examples.front_ends:server --timeout-graceful-shutdown 1

AG-UI (`@ag-ui/client`):   new HttpAgent({ url: "http://127.0.0.1:8000/chat/ag-ui/helper", threadId: "t1" })
Vercel AI SDK (`ai`):      new DefaultChatTransport({ api: "http://127.0.0.1:8000/chat/vercel-ai/helper" })
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import App
from holdfast.adapters.pydantic_ai import durable
from holdfast.web.auth import Principal
from holdfast.web.protocols import make_chat


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Stands for a provider. Use Agent("openai:gpt-5") instead."""
    for word in f"This is reply {len(messages) // 2 + 1}.".split():
        yield f"{word} "


helper = Agent(FunctionModel(stream_function=answer), name="helper")

#: Uses the default store: HOLDFAST_STORE, or SQLite under .holdfast/ in the working directory.
app = App([durable(helper, stream=True)])


def authorize(request: Request) -> Principal:
    """Stands for your sessions: every visitor is the same guest."""
    return Principal(caller_id="guest")


@asynccontextmanager
async def lifespan(server: FastAPI) -> AsyncIterator[None]:
    async with app:
        yield


server = FastAPI(lifespan=lifespan)
# Pages of another origin, such as a development server, are named here.
server.mount("/chat", make_chat(app, authorize=authorize, allowed_origins=["http://localhost:3000"]))
