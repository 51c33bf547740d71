"""A web service that resumes the runs of the previous process when it starts.

uvicorn examples.web_service:server

curl -d '{"id": "q1", "prompt": "hello"}' http://127.0.0.1:8000/ask
curl http://127.0.0.1:8000/runs/q1
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import Agent, App, HoldfastError, Message, Reply, ToolCall, ToolResult, ToolSchema, User, tool
from holdfast.checkpoint.errors import RunConflict, RunNotFound


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
    async with app:
        yield


async def ask(request: Request) -> JSONResponse:
    """Accept a question. It is durable when this responds; the same id again is the same question."""
    body = await request.json()
    try:
        run_id = await app.submit("counter", body["prompt"], run_id=body.get("id"))
    except RunConflict as exc:
        return JSONResponse({"error": str(exc)}, status_code=409)
    await app.recover()  # this process executes the run; with separate workers, leave it to them
    return JSONResponse({"id": run_id}, status_code=202)


async def answer(request: Request) -> JSONResponse:
    """Wait for the answer to a question."""
    try:
        result = await app.result(request.path_params["id"])
    except RunNotFound as exc:
        return JSONResponse({"error": str(exc)}, status_code=404)
    except HoldfastError as exc:
        return JSONResponse({"error": str(exc)}, status_code=500)
    return JSONResponse({"output": result.output})


server = Starlette(
    routes=[Route("/ask", ask, methods=["POST"]), Route("/runs/{id}", answer)],
    lifespan=lifespan,
)
