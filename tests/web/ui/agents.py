"""The agents of the page's tests. Their models follow scripts and answer at once."""

import asyncio
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import msgspec
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.web.ui.trip import book_trip, find_rooms, travel

from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.agents.tool_context import emit_text
from holdfast.core.agents.waiting_tools import ask_person
from holdfast.core.errors import ModelUnavailable
from holdfast.core.run.messages import Message, Reply, Usage
from holdfast.core.run.waiting import ApprovalRequest

LONG_TEXT = "line of a long page\n" * 500


@tool(approval=ApprovalRequest(audience="finance"))
async def pay(amount: Annotated[float, msgspec.Meta(ge=0)], to: str) -> str:
    """Pay an invoice."""
    return f"paid {amount} to {to}"


@tool(effect="pure")
async def read_page(url: str) -> str:
    """Read a page."""
    return LONG_TEXT


@tool(effect="pure")
async def carrier_status(order: str) -> str:
    """Ask the carrier."""
    raise TimeoutError(f"<script>window.hacked = 1</script> no answer about {order}")


#: Set by a test: the writer continues.
go_on = threading.Event()


async def write_slowly(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stream half of the reply, and the rest when the test says so."""
    await emit_text("Once upon ")
    await asyncio.to_thread(go_on.wait)
    return Reply(text="Once upon a time.")


async def refuse_for_an_hour(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Answer as a provider whose rate limit is reached."""
    raise ModelUnavailable("429 Too Many Requests", timedelta(hours=1))


def build_agents() -> list[AgentSource[Any]]:
    usage = Usage(input_tokens=900, output_tokens=100, cost_usd=0.01)
    clerk = ScriptedModel(
        tool_reply(call("p1", "pay", amount=129.0, to="ann"), text="I pay **ann** now.", usage=usage), "It is settled."
    )
    asker = ScriptedModel(tool_reply(call("q1", "ask_person", question="When?", options=["May", "June"])), "Booked.")
    reader = ScriptedModel(
        tool_reply(call("r1", "read_page", url="https://example.com/a"), text="First the page.", usage=usage),
        tool_reply(call("r2", "read_page", url="https://example.com/b"), text="Then the needle.", usage=usage),
        "Both are read: see https://example.com/summary",
    )
    return [
        Agent(name="clerk", model=clerk, tools=[pay], instructions="Pay what is due."),
        Agent(name="asker", model=asker, tools=[ask_person]),
        Agent(name="reader", model=reader, tools=[read_page]),
        Agent(
            name="caller",
            model=ScriptedModel(tool_reply(call("s1", "carrier_status", order="A17")), "Lost."),
            tools=[carrier_status],
        ),
        Agent(name="broken", model=ScriptedModel(ValueError("no such account"))),
        Agent(name="writer", model=write_slowly),
        Agent(name="throttled", model=refuse_for_an_hour, retry=Retry(max_tries=1)),
        Agent(name="patient", model=refuse_for_an_hour, retry=Retry(max_elapsed=timedelta(days=1))),
        # No test agent executes these: their runs stay as they were stored.
        Agent(name="greeter", model=ScriptedModel("Hello.", "Hello again.")),
        travel,
        find_rooms,
        book_trip,
    ]
