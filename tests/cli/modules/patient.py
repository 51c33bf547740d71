"""An agent whose calls wait: for an approval, a person, a signal, a result from outside. The prompt names the tools."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast import (
    Agent,
    App,
    ApprovalRequest,
    Deferred,
    Reply,
    ToolCall,
    ToolResult,
    User,
    ask_person,
    tool,
    wait_for,
)
from holdfast.core import Message

ARGUMENTS: dict[str, dict[str, Any]] = {
    "pay": {"amount": 200, "to": "ann"},
    "ask_person": {"question": "Which colour?", "options": ["red", "blue"]},
    "wait_for": {"name": "paid"},
    "render": {"scene": "sea"},
}


@tool(approval=ApprovalRequest(reason="much money", expires_in=timedelta(days=2)))
def pay(amount: int, to: str) -> str:
    return f"paid {amount} to {to}"


@tool
def render(scene: str) -> Deferred:
    return Deferred(reason="rendering")


async def model(messages: Sequence[Message], tools: Sequence[Any]) -> Reply:
    """Call each tool that the prompt names; then answer with the results and the messages that were sent."""
    prompt, *sent = [message.text for message in messages if isinstance(message, User)]
    if not any(isinstance(message, Reply) for message in messages):
        names = prompt.split()
        calls = [ToolCall(id=f"c{at}", name=name, arguments=ARGUMENTS[name]) for at, name in enumerate(names, 1)]
        return Reply(tool_calls=calls)
    results = [message.content for message in messages if isinstance(message, ToolResult)]
    return Reply(text=f"{results} {sent}")


agent = Agent(name="patient", model=model, tools=[pay, render, ask_person, wait_for])
app = App([agent])
