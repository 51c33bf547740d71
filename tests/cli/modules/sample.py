"""Agents for the command line's tests. The prompt is the plan: each word is a step, `a+b` calls two tools at once.

What tools did is in the file `effects` of the working directory, one line for each call.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import (
    Agent,
    App,
    CheckpointSettings,
    Phase,
    Reply,
    Retention,
    ToolCall,
    Usage,
    User,
    current_call,
    tool,
)

EFFECTS, OPEN, REPAIRED = Path("effects"), Path("open"), Path("repaired")


def _did(what: str) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{what} {current_call().call_id}\n")


async def _wait_for_the_gate() -> str:
    while not OPEN.exists():  # noqa: ASYNC110 - it is opened by another process
        await asyncio.sleep(0.01)
    return "the gate is open"


@tool(effect="pure")
def note(text: str) -> str:
    _did("note")
    return f"noted {text}"


@tool
def send(text: str) -> str:
    _did("send")
    return f"sent {text}"


@tool
def fail(text: str) -> str:
    raise ValueError("this never works")


@tool(effect="idempotent")
async def gate(text: str) -> str:
    _did("gate")
    return await _wait_for_the_gate()


@tool(in_doubt="park")
async def transfer(text: str) -> str:
    _did("transfer")
    return await _wait_for_the_gate()


async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
    usage = Usage(input_tokens=10, output_tokens=5, cost_usd=0.001)
    prompt = next(message.text for message in messages if isinstance(message, User))
    plan = prompt.split()
    done = sum(isinstance(message, Reply) for message in messages)
    if done >= len(plan):
        return Reply(text=f"done: {prompt}", usage=usage)
    if plan[done] == "boom" and not REPAIRED.exists():
        raise RuntimeError("the model is down")
    names = ["note" if name == "boom" else name for name in plan[done].split("+")]
    calls = [
        ToolCall(id=f"c{done + 1}-{place}", name=name, arguments={"text": f"{done + 1}"})
        for place, name in enumerate(names, 1)
    ]
    return Reply(text=f"thinking about {plan[done]}", tool_calls=calls, usage=usage)


helper = Agent(name="helper", model=model, tools=[note])


@tool(effect="idempotent")
async def delegate(text: str) -> str:
    result = await current_call().run(helper, "note")
    return f"the helper says {result.output}"


async def shorten(messages: Sequence[Any]) -> Sequence[Any] | None:
    """Forget results, keep questions and answers: the script counts the answers."""
    results = [message for message in messages if type(message).__name__ == "ToolResult"]
    return [message for message in messages if message not in results] if len(results) == 3 else None


TOOLS = [note, send, fail, gate, transfer, delegate]

agent = Agent(name="sampler", model=model, tools=TOOLS)
other = Agent(name="other", model=model, tools=TOOLS)
phased = Agent(
    name="phased", model=model, tools=TOOLS, phases=[Phase(name="draft", prompt="note"), Phase(name="polish")]
)
compacting = Agent(name="compacting", model=model, tools=TOOLS, compact=shorten)
app = App([agent, other, phased, compacting])
in_memory = App([agent], None)
forgetting = App([agent], checkpoint=CheckpointSettings(retention=Retention(done=timedelta(0), failed=timedelta(0))))
not_an_agent = 42
