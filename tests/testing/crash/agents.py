"""Agents for the crash test. They are deterministic: what they do depends on the conversation alone."""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.simulated_host import REMOVE_ENDED

from holdfast import (
    NOT_EXECUTED,
    UNKNOWN,
    Agent,
    CheckpointSettings,
    Completed,
    Phase,
    Reply,
    ToolCall,
    ToolResult,
    Usage,
    current_call,
    tool,
)
from holdfast.core import Message, ToolContext, ToolSchema
from holdfast.core.agents.calls import Reconciliation
from holdfast.testing import TRIAL_FOLDER


def _ledger() -> Path:
    return Path(os.environ[TRIAL_FOLDER]) / "effects"


def _record_effect(what: str) -> str:
    """Record an effect outside the store."""
    with _ledger().open("a") as ledger:
        print(what, file=ledger)
    return what


def _has_effect(what: str) -> bool:
    return _ledger().exists() and what in _ledger().read_text().splitlines()


# -- tools ------------------------------------------------------------------------------------------------------


@tool(effect="pure")
def look(city: str) -> str:
    return f"{city} is fine"


@tool(effect="pure")
async def weigh(city: str) -> dict[str, Any]:
    return {"city": city, "weight": len(city)}


@tool(effect="idempotent")
def reserve(city: str) -> str:
    return f"reserved {city} under {current_call().idempotency_key}"


@tool
def book(city: str) -> str:
    return _record_effect(f"booked {city}")


@tool
async def pay(city: str) -> str:
    return _record_effect(f"paid {city}")


@tool
async def refuse(city: str) -> str:
    raise LookupError(f"no such city: {city}")


async def _reconcile_send(call: ToolContext) -> Completed | Reconciliation:
    what = f"sent {call.arguments['city']}"
    return Completed(what) if _has_effect(what) else NOT_EXECUTED


@tool(reconcile=_reconcile_send)
async def send(city: str) -> str:
    return _record_effect(f"sent {city}")


async def _reconcile_phone(call: ToolContext) -> Completed | Reconciliation:
    return UNKNOWN


@tool(reconcile=_reconcile_phone)
def phone(city: str) -> str:
    return _record_effect(f"phoned {city}")


@tool(in_doubt="park")
async def sign(city: str) -> str:
    return _record_effect(f"signed {city}")


# -- models -----------------------------------------------------------------------------------------------------


def _call(number: int, name: str, city: str) -> ToolCall:
    return ToolCall(id=f"{name}-{number}", name=name, arguments={"city": city})


class Plan:
    """A model that asks for one batch of tools after another and then answers with their results.

    After an unknown outcome it calls `look` first, so a call in doubt changes the conversation.
    """

    def __init__(self, *batches: Sequence[str], city: str = "Porto") -> None:
        self._batches, self._city = batches, city

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        usage = Usage(input_tokens=len(messages), output_tokens=7, cost_usd=0.25)
        replies = [message for message in messages if isinstance(message, Reply)]
        results = [message for message in messages if isinstance(message, ToolResult)]
        doubts = sum("Unknown outcome" in str(result.content) for result in results)
        looks = sum(call.id.startswith("again-") for reply in replies for call in reply.tool_calls)
        if doubts > looks and any(schema.name == "look" for schema in tools):
            call = ToolCall(id=f"again-{len(replies)}", name="look", arguments={"city": self._city})
            return Reply(tool_calls=[call], usage=usage)
        done = len(replies) - looks
        if done < len(self._batches):
            calls = [_call(10 * done + index, name, self._city) for index, name in enumerate(self._batches[done])]
            return Reply(text=f"batch {done}", tool_calls=calls, usage=usage)
        return Reply(text="; ".join(str(result.content) for result in results) or "nothing to do", usage=usage)


# -- agents -----------------------------------------------------------------------------------------------------

single = Agent(
    name="single",
    instructions="Do one thing after the other.",
    model=Plan(["look"], ["book"], ["reserve"], ["pay"], ["refuse"]),
    tools=[look, book, reserve, pay, refuse],
)

batches = Agent(
    name="batches",
    model=Plan(["look", "book", "weigh", "pay", "reserve"], ["pay", "look"], ["weigh", "weigh", "look"]),
    tools=[look, weigh, reserve, book, pay],
)

reconciled = Agent(
    name="reconciled",
    model=Plan(["send"], ["phone", "send", "look"], ["sign", "weigh"]),
    tools=[look, weigh, send, phone, sign],
)

phases = Agent(
    name="phases",
    instructions="In three phases.",
    tools=[look, book, pay],
    phases=[
        Phase(name="search", prompt="Search for $prompt", model=Plan(["look"])),
        Phase(name="work", prompt="Work on $search", model=Plan(["book"], ["look", "pay"])),
        Phase(name="work", prompt="Work again on $work", model=Plan(["pay"], city="Faro"), tools=["pay", "look"]),
        Phase(name="report", prompt="Report $work", model=Plan()),
    ],
)


# Three levels: the parent's tool starts two children, each of which starts a grandchild.

grandchild = Agent(name="grandchild", model=Plan(["book", "look"]), tools=[book, look])


@tool(effect="idempotent")
async def delegate(city: str) -> str:
    result = await current_call().run(grandchild, f"for {city}")
    return str(result.output)


child = Agent(name="child", model=Plan(["delegate", "pay"]), tools=[delegate, pay, look])


@tool(effect="idempotent")
async def divide(city: str) -> list[str]:
    call = current_call()
    return [str((await call.run(child, f"{part} of {city}", key=part)).output) for part in ("north", "south")]


parent = Agent(name="parent", model=Plan(["look"], ["divide", "look"]), tools=[divide, look])


# A child run that parks, below a call that may be repeated.

signer = Agent(name="signer", model=Plan(["sign", "look"]), tools=[sign, look])


@tool(effect="idempotent")
async def hand_over(city: str) -> str:
    return str((await current_call().run(signer, f"sign {city}")).output)


boss = Agent(name="boss", model=Plan(["hand_over", "look"], ["pay"]), tools=[hand_over, look, pay])


async def _compact(messages: Sequence[Any]) -> Sequence[Any] | None:
    """Keep the beginning and the last step, once the conversation has grown to five messages."""
    return [messages[0], *messages[-2:]] if len(messages) == 5 else None


class CompactedPlan(Plan):
    """Reads its position from the ids of the last calls, because the conversation is compacted on the way."""

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        called = [call.id for message in messages if isinstance(message, Reply) for call in message.tool_calls]
        done = int(called[-1].rpartition("-")[2]) // 10 + 1 if called else 0
        if done == len(self._batches):
            return Reply(text=f"{done} batches, {len(messages)} messages")
        calls = [_call(10 * done + index, name, self._city) for index, name in enumerate(self._batches[done])]
        return Reply(tool_calls=calls, usage=Usage(input_tokens=len(messages)))


compacted = Agent(
    name="compacted",
    model=CompactedPlan(["look"], ["look"], ["book"], ["pay", "look"]),
    tools=[look, book, pay],
    compact=_compact,
)


def throttled() -> dict[str, Any]:
    """Options under which only forced saves are written."""
    return {"checkpoint": CheckpointSettings(save_interval=timedelta(hours=1))}


def not_kept() -> dict[str, Any]:
    """Options under which runs are removed when they end."""
    return {"checkpoint": CheckpointSettings(retention=REMOVE_ENDED)}


ALL = {agent.name: agent for agent in (single, batches, reconciled, phases, parent, boss, compacted)}
