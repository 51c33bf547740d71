"""The program of the server under test: `python -m tests.web.site FOLDER STORE KIND PORT` prints its URL and serves.

KIND is `users` (an authorize function; the API is mounted under `/some/prefix`), `viewer` (the same, but it executes no
runs), `local` (no authorize), `chat` (the protocols of front ends), `chat-viewer` (the same, but it
executes no runs), or `worker` and `chat-worker` (no server).
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import ASGIApp

from holdfast import (
    Agent,
    App,
    ApprovalRequest,
    Deferred,
    Reply,
    ToolCall,
    User,
    WorkerSettings,
    current_call,
    tool,
    wait_for,
)
from holdfast.core import Message, ToolSchema
from holdfast.core.agents.agent import AgentSource
from holdfast.web.api import make_api
from holdfast.web.auth import ALL_SCOPES, Principal, Scope
from holdfast.web.server import serve_locally
from holdfast.web.tokens import BrowserTokens

SECRET = "the secret of the tokens under test"
#: What a page, a terminal, a header or a frame must not be broken by.
HOSTILE = [
    "<script>alert(1)</script></script><!--",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x00",
    "data: forged\n\nevent: end\ndata: {}\n\nid: 99\n\r\n\rretry: 1\r\n\r\n: comment",
    "line\u2028separator\u2029paragraph\u0085next\ufeffmark",
    "Set-Cookie: a=b\r\nX-Injected: 1\r\n\r\n<html>",
    "x" * 10_000_000,
]


def make_agents(folder: Path) -> list[Agent]:
    """An agent that calls the tools which its prompt names, one a step, and one that speaks hostile text."""

    def write(line: str) -> None:
        with (folder / "ledger").open("a") as file:
            file.write(f"{current_call().run_id} {line}\n")
            os.fsync(file.fileno())

    @tool
    async def note() -> str:
        """Write a line."""
        write("note")
        return "noted"

    @tool(effect="idempotent")
    async def gate() -> str:
        """Wait until the test opens the gate of the run."""
        write("gate")
        while not (folder / f"open-{current_call().run_id}").exists():  # noqa: ASYNC110 - by another process
            await asyncio.sleep(0.01)
        return "open"

    @tool(approval=True)
    async def pay(amount: int = 1) -> str:
        """Pay, with approval."""
        write(f"pay {amount}")
        return "paid"

    @tool(approval=ApprovalRequest(audience="finance"))
    async def transfer() -> str:
        """Transfer, with an approval of one audience."""
        write("transfer")
        return "transferred"

    @tool(on_error="raise")
    async def fail() -> str:
        """Fail until the test repairs it."""
        if not (folder / f"open-{current_call().run_id}").exists():
            raise RuntimeError("broken <script>")
        return "repaired"

    @tool
    async def render() -> Deferred:
        """Start something whose result comes later."""
        write(f"token {current_call().completion_token}")
        return Deferred(reason="rendering")

    @tool(effect="pure")
    async def curse(number: int) -> str:
        """Return hostile text."""
        return HOSTILE[number]

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        texts = [message.text for message in messages if isinstance(message, User)]
        words = texts[0].split()
        done = sum(isinstance(message, Reply) for message in messages)
        with (folder / "requests").open("a") as file:
            file.write(f"{texts[0]} {done}\n")
        if done == len(words):
            return Reply(text=" | ".join(["did", *texts]))
        name, _, argument = words[done].partition("=")
        named = {"wait_for": "name", "pay": "amount"}
        arguments = {named[name]: json.loads(argument or "1")} if name in named else {}
        return Reply(text=f"step {done}", tool_calls=[ToolCall(id=f"c{done}", name=name, arguments=arguments)])

    async def curse_model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        done = sum(isinstance(message, Reply) for message in messages)
        if done == len(HOSTILE):
            return Reply(text=HOSTILE[2])
        call = ToolCall(id=f"c{done}", name="curse", arguments={"number": done})
        return Reply(text=HOSTILE[done][:1000], tool_calls=[call])

    async def chat_model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        """Answer the last message: `pay` asks for the tool, other text is repeated."""
        place = max(place for place, message in enumerate(messages) if isinstance(message, User))
        asked, since = messages[place], messages[place + 1 :]
        assert isinstance(asked, User)
        with (folder / "requests").open("a") as file:
            file.write(f"{asked.text} {len(since)}\n")
        if asked.text in ("note", "gate", "pay", "transfer") and not since:
            return Reply(text="wait", tool_calls=[ToolCall(id=f"{asked.text}-{place}", name=asked.text)])
        if asked.text == "fail":
            raise RuntimeError("no answer")
        return Reply(text=f"you said {asked.text}")

    return [
        Agent(name="talker", model=chat_model, tools=[note, gate, pay, transfer]),
        Agent(name="clerk", model=model, tools=[note, gate, pay, fail, render, wait_for]),
        Agent(name="curser", model=curse_model, tools=[curse]),
    ]


async def authorize(request: Request) -> Principal | None:
    """The header `x-user` names the user: there are two, and an operator who sees all runs."""
    token = BrowserTokens(SECRET).authorize(request)
    if token is not None:
        return token
    user = request.headers.get("x-user")
    scopes: set[Scope] = {
        scope for scope in ALL_SCOPES if scope in request.headers.get("x-scopes", " ".join(ALL_SCOPES))
    }
    if user in ("ann", "bob"):
        return Principal(caller_id=user, scopes=scopes)
    return Principal(caller_id="operator", sees_all=True) if user == "operator" else None


def authorize_guest(request: Request) -> Principal | None:
    """The headers `x-user` and `x-audience` name the user and one audience; without `x-user` it is a guest."""
    user = request.headers.get("x-user", "guest")
    scopes: set[Scope] = {"read"} if user == "reader" else {"read", "send", "answer"}
    audience = request.headers.get("x-audience")
    audiences = None if audience is None else {audience}
    return None if user == "stranger" else Principal(caller_id=user, scopes=scopes, audiences=audiences)


def make_site(app: App, kind: str) -> ASGIApp:
    if kind.startswith("chat"):
        from holdfast.web.protocols import make_chat

        return make_chat(app, authorize=authorize_guest)

    site = FastAPI()
    site.mount("/some/prefix", make_api(app, authorize=authorize, allowed_origins=["https://chat.example"]))
    return site


async def main(folder: str, store: str, kind: str, port: str) -> None:
    worker = WorkerSettings(take_runs=not kind.endswith("viewer"))
    agents: list[AgentSource] = [*make_agents(Path(folder))]
    if kind.startswith("chat"):  # loads pydantic-ai
        from tests.web.protocols.assistant import make_assistant

        agents.append(make_assistant(Path(folder)))
    async with App(agents, store, worker=worker) as app:
        if kind.endswith("worker"):
            print("ready", flush=True)
            await app.serve()
            return
        async with serve_locally(make_site(app, kind), int(port)) as url:
            print(url + ("/some/prefix" if kind in ("users", "viewer") else ""), flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
