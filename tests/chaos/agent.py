"""The agent of the chaos test: its tools have effects outside the store, and its answer reports their outcomes."""

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast import Agent, Reply, ToolCall, ToolResult, current_call, tool
from holdfast.core import Message, ToolSchema
from holdfast.core.agents.tool import Tool

STEPS = [["charge"], ["ship", "look"], ["mail", "charge"]]


class Effect(msgspec.Struct, frozen=True):
    """An effect outside the store."""

    run_id: str
    call_id: str
    pid: int


class Ledger:
    """An append-only file that any number of processes write to."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, effect: Effect) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, msgspec.json.encode(effect) + b"\n")  # O_APPEND: one write is one line
        finally:
            os.close(file)

    async def wait_for_gate(self) -> None:
        while not self._path.with_name("gate").exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.02)

    def open_gate(self) -> None:
        self._path.with_name("gate").touch()

    def read(self) -> list[Effect]:
        if not self._path.exists():
            return []
        return [msgspec.json.decode(line, type=Effect) for line in self._path.read_bytes().splitlines()]


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Ask for one batch of tools after another. The answer reports for each call whether its outcome is known."""
    replies = [message for message in messages if isinstance(message, Reply)]
    done = len(replies)
    if done < len(STEPS):
        return Reply(tool_calls=[ToolCall(id=f"{name}-{done}", name=name) for name in STEPS[done]])
    results = [message for message in messages if isinstance(message, ToolResult)]
    return Reply(text=json.dumps({result.call_id: "unknown" if result.error else "done" for result in results}))


#: The last effects of runs with this prefix wait until the file `gate` is beside the ledger.
GATED = "gated-"


def chaos_agent(ledger: Ledger, seconds: float) -> Agent:
    """Build the agent. Each tool takes this many seconds."""

    async def work() -> str:
        call = current_call()
        before = random.random() * seconds
        await asyncio.sleep(before)
        if call.run_id.startswith(GATED) and call.call_id.endswith(f"-{len(STEPS) - 1}"):
            await ledger.wait_for_gate()
        ledger.write(Effect(call.run_id, call.call_id, os.getpid()))
        await asyncio.sleep(seconds - before)
        return "done"

    once = [Tool(work, name=name) for name in ("charge", "ship", "mail")]

    @tool(effect="pure")
    async def look() -> str:
        await asyncio.sleep(seconds / 2)
        return "looked"

    return Agent(name="chaos", model=model, tools=[*once, look])
