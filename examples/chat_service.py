"""A FastAPI service with a chat endpoint and an approval endpoint. Chats and approvals survive its restarts.

uvicorn examples.chat_service:server --timeout-graceful-shutdown 5

curl -H 'content-type: application/json' -d '{"id": "m1", "text": "refund 900"}' http://127.0.0.1:8000/chats/ann/messages
curl http://127.0.0.1:8000/approvals
curl -H 'content-type: application/json' -d '{"approve": true, "by": "bob", "digest": "..."}' \
    http://127.0.0.1:8000/approvals/chat:clerk:ann/refund-1
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from holdfast import Agent, App, ApprovalRequest, Approve, Deny, Reply, RunWaiting, ToolCall, ToolResult, User, tool
from holdfast.core import Message, ToolSchema
from holdfast.errors import AlreadyAnswered, DefinitionError, NotWaiting, RunNotFound

#: How long a client waits for a reply before it has to ask again.
WAIT = timedelta(seconds=20)


def needs_approval(arguments: dict[str, Any]) -> bool | ApprovalRequest:
    return ApprovalRequest(reason="more than 100", audience="finance") if arguments["amount"] > 100 else False


@tool(approval=needs_approval)
async def refund(amount: int) -> str:
    """Refund an amount."""
    return f"refunded {amount}"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a provider: `refund 900` calls the tool, all else is answered at once."""
    last = messages[-1]
    if isinstance(last, ToolResult):
        return Reply(text=str(last.content))
    assert isinstance(last, User)
    word, _, amount = last.text.partition(" ")
    if word != "refund":
        return Reply(text=f"You said {last.text!r}. Try: refund 900")
    turns = sum(isinstance(message, User) for message in messages)
    return Reply(tool_calls=[ToolCall(id=f"refund-{turns}", name="refund", arguments={"amount": int(amount)})])


#: Uses the default store: HOLDFAST_STORE, or SQLite under .holdfast/ in the working directory.
app = App([Agent(name="clerk", model=model, tools=[refund])])


@asynccontextmanager
async def lifespan(server: FastAPI) -> AsyncIterator[None]:
    async with app:  # while it is open the App is a worker: it continues what earlier processes left
        yield


server = FastAPI(lifespan=lifespan)


class ChatMessage(BaseModel):
    #: Chosen by the client. The same id again is the same message.
    id: str
    text: str


class Verdict(BaseModel):
    approve: bool
    #: A real service takes it from the session, which also says whether this person belongs to the call's audience.
    by: str
    #: Digest of the arguments that the person saw.
    digest: str
    arguments: dict[str, Any] | None = None
    reason: str = ""


@server.post("/chats/{key}/messages")
async def send(key: str, message: ChatMessage, response: Response) -> dict[str, Any]:
    """Send a message and wait for the reply. 202 says that it comes later: send the same message again."""
    chat = app.conversation("clerk", key)
    try:
        async with asyncio.timeout(WAIT.total_seconds()):
            turn = await chat.send(message.text, id=message.id)
    except RunWaiting as waiting:
        response.status_code = 202
        return {"status": "waiting", "for": [call.call_id for call in waiting.calls]}
    except TimeoutError:
        response.status_code = 202
        return {"status": "running"}
    return {"reply": turn.output}


@server.get("/chats/{key}")
async def read(key: str) -> list[dict[str, Any]]:
    """Return the turns of a chat."""
    turns = await app.conversation("clerk", key).history()
    return [{"message": turn.prompt, "status": turn.status, "reply": turn.output} for turn in turns]


@server.get("/approvals")
async def list_approvals() -> list[dict[str, Any]]:
    """Return the calls that wait for a person."""
    return [
        {
            "run_id": call.run_id,
            "call_id": call.call_id,
            "tool": call.tool,
            "arguments": call.arguments,
            "digest": call.digest,
            "reason": call.reason,
            "audience": call.audience,
        }
        for call in await app.pending(agent="clerk")
    ]


@server.post("/approvals/{run_id}/{call_id}", status_code=204)
async def decide(run_id: str, call_id: str, verdict: Verdict) -> None:
    """Approve or deny a call. It is decided once; the decision is durable when this responds."""
    answer = Approve(arguments=verdict.arguments) if verdict.approve else Deny(reason=verdict.reason)
    try:
        await app.answer(run_id, call_id, answer, by=verdict.by, via="web", digest=verdict.digest)
    except (NotWaiting, RunNotFound) as exc:
        raise HTTPException(404, str(exc)) from exc
    except AlreadyAnswered as exc:
        raise HTTPException(409, str(exc)) from exc
    except DefinitionError as exc:  # the arguments do not fit the tool: nothing was sent, and the call still waits
        raise HTTPException(422, str(exc)) from exc
