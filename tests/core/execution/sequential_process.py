"""A process with three payments in one reply, in order. It kills itself in the call that its argument names."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast import Agent, App, Reply, ToolCall, tool

STORE, LEDGER, FATAL = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


def note(line: str) -> None:
    with LEDGER.open("a") as file:
        file.write(f"{line}\n")


@tool(effect="pure")
async def look(name: str) -> str:
    note(f"look {name}")
    return name


@tool(sequential=True)
async def pay(name: str) -> str:
    note(f"pay {name}")
    if name == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return name


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    if any(isinstance(message, Reply) for message in messages):
        results = [message for message in messages if hasattr(message, "call_id")]
        return Reply(text=" | ".join("unknown" if result.error else result.content for result in results))
    calls = [("look", "a"), ("pay", "b"), ("look", "c"), ("pay", "d"), ("pay", "e")]
    return Reply(tool_calls=[ToolCall(id=name, name=tool, arguments={"name": name}) for tool, name in calls])


app = App([Agent(name="payer", model=model, tools=[look, pay])], STORE)
print(app.run_sync("payer", "go", run_id="r").output)
