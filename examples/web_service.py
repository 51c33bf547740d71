"""A web service that accepts a question at once, answers it in the background, and survives its own restarts.

uvicorn examples.web_service:server --timeout-graceful-shutdown 5

curl -d '{"id": "q1", "prompt": "hello"}' http://127.0.0.1:8000/ask
curl http://127.0.0.1:8000/runs/q1
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import Agent, App, HoldfastError, Reply, ToolCall, ToolResult, User, tool
from holdfast.core import Message, ToolSchema
from holdfast.errors import RunConflict, RunNotFound

#: How many seconds a client waits for an answer before it asks again.
WAIT = 20.0


@tool(effect="pure")
async def count(text: str) -> int:
    """Count the letters of a text."""
    return len(text)


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a provider."""
    last = messages[-1]
    if isinstance(last, User):
        return Reply(tool_calls=[ToolCall(id="call-1", name="count", arguments={"text": last.text})])
    if isinstance(last, ToolResult):
        return Reply(text=f"{last.content} letters")
    raise ValueError(f"unexpected message: {last}")


#: Uses the default store: HOLDFAST_STORE, or SQLite under .holdfast/ in the working directory.
app = App([Agent(name="counter", model=model, tools=[count])])


@asynccontextmanager
async def lifespan(server: Starlette) -> AsyncIterator[None]:
    async with app:  # while it is open the App is a worker: it executes what `submit` queues
        yield


async def ask(request: Request) -> JSONResponse:
    """Accept a question. It is durable when this responds; the same id again is the same question."""
    body = await request.json()
    try:
        run_id = await app.submit("counter", body["prompt"], run_id=body.get("id"))
    except RunConflict as exc:
        return JSONResponse({"error": str(exc)}, status_code=409)
    return JSONResponse({"id": run_id}, status_code=202)


async def answer(request: Request) -> JSONResponse:
    """Wait a while for the answer to a question. 202 says that the client has to ask again."""
    run_id = request.path_params["id"]
    try:
        async with asyncio.timeout(float(request.query_params.get("wait", WAIT))):
            result = await app.result(run_id)
    except TimeoutError:
        return JSONResponse({"status": (await app.get(run_id)).status}, status_code=202)
    except RunNotFound as exc:
        return JSONResponse({"error": str(exc)}, status_code=404)
    except HoldfastError as exc:
        return JSONResponse({"error": str(exc)}, status_code=500)
    return JSONResponse({"output": result.output})


server = Starlette(
    routes=[Route("/ask", ask, methods=["POST"]), Route("/runs/{id}", answer)],
    lifespan=lifespan,
)
