"""Executes and answers a run of pydantic-ai with approvals, and kills its process before one of the writes."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, ApprovalRequired, CallDeferred, RunContext
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from tests.adapters.scripted_model import ScriptedModel, call
from tests.probe_store import ProbeStore

from holdfast import Agent as DurableAgent
from holdfast import App, Approve, Deny, RunWaiting, current_call
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.store import END
from holdfast.runtime.operations.mailing import NotWaiting
from holdfast.stores.from_url import store_from_url

RUN = "r"
BATCH = [
    call("look", "look"),
    call("pay", "pay", amount=200),
    call("ship", "ship", to="ann"),
    call("render", "render", scene="sea"),
]


class Ledger:
    """A file of what the tools did, outside the store."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger"
        self.writes, self.tokens = folder / "writes", folder / "tokens"

    def add(self, line: str) -> None:
        append_line(self.path, line)

    @property
    def lines(self) -> list[str]:
        return read_lines(self.path)


def append_line(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def make_agent(ledger: Ledger) -> DurableAgent[str]:
    """An agent that calls four tools: one needs nothing, two an approval, one a result from outside."""
    agent: Agent[None, str] = Agent(ScriptedModel(BATCH, "done").model, name="clerk")

    @agent.tool_plain
    async def look() -> str:
        ledger.add("look")
        return "seen"

    @agent.tool_plain(requires_approval=True)
    async def pay(amount: int) -> str:
        ledger.add(f"pay {amount}")
        return f"paid {amount}"

    @agent.tool
    async def ship(ctx: RunContext[None], to: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        ledger.add(f"ship {to}")
        return f"shipped to {to}"

    @agent.tool_plain
    async def render(scene: str) -> Any:
        ledger.add(f"render {scene}")
        append_line(ledger.tokens, current_call().completion_token)
        raise CallDeferred

    return durable(agent)


async def work(url: str, folder: Path, die_at: int) -> dict[str, str]:
    """Execute the run to its end, and answer its calls meanwhile. Die before the write of this number.

    Returns the results of the calls, by call id.
    """
    ledger = Ledger(folder)

    async def count(method: str) -> None:
        if method in ("create", "append", "release", "post"):
            append_line(ledger.writes, method)
            if len(read_lines(ledger.writes)) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    agent = make_agent(ledger)
    async with App([agent], ProbeStore(store_from_url(url), before=count), worker=False) as app:
        while True:
            try:
                result = await app.run(agent, "go", run_id=RUN)
            except RunWaiting as waiting:
                await answer(app, waiting, ledger)
            else:
                break
        assert app.store is not None
        assert (await app.store.load(RUN, after=END)).mail == ()
        parts = [part for message in result.messages if isinstance(message, ModelRequest) for part in message.parts]
        return {part.tool_call_id: str(part.content) for part in parts if isinstance(part, ToolReturnPart)}


async def answer(app: App, waiting: RunWaiting, ledger: Ledger) -> None:
    """Answer one call that waits."""
    first = waiting.calls[0]
    match first.call_id:
        case "pay":
            await app.answer(RUN, "pay", Approve(arguments={"amount": 150}), by="ann", digest=first.digest)
        case "ship":
            await app.answer(RUN, "ship", Deny(reason="no stock"), by="ann")
        case "render":
            for token in read_lines(ledger.tokens):
                with suppress(NotWaiting):  # of a call that was never durable
                    await app.complete_call(token, "sea.png")


def main(url: str, folder: Path, die_at: int) -> None:
    asyncio.run(work(url, folder, die_at))
