"""The same agent for the native loop and for pydantic-ai, with the results that its model saw."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from tests.adapters.scripted_model import ScriptedModel as PydanticScript
from tests.adapters.scripted_model import call as pydantic_call
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, ApprovalRequest, Deferred, ToolResult, ask_person, current_call, sleep, tool, wait_for
from holdfast.adapters.pydantic_ai import durable
from holdfast.core.agents.tool import Tool

#: The calls of one reply: id, tool, arguments.
Batch = Sequence[tuple[str, str, dict[str, Any]]]


class Waiter:
    """An agent that makes the calls of each batch, and their outcomes."""

    def __init__(self, loop: str, *batches: Batch, expires_in: timedelta | None = None) -> None:
        self.paid: list[int] = []
        self.tokens: list[str] = []

        @tool(approval=ApprovalRequest(expires_in=expires_in))
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        @tool
        async def render() -> Deferred:
            self.tokens.append(current_call().completion_token)
            return Deferred(expires_in=expires_in)

        tools: list[Tool] = [pay, render, ask_person, sleep, wait_for]
        if loop == "native":
            replies = [tool_reply(*(call(id, name, **given) for id, name, given in batch)) for batch in batches]
            self._native = ScriptedModel(*replies, "done")
            self.agent: Any = Agent(name="a", model=self._native, tools=tools)
        else:
            turns = [[pydantic_call(id, name, **given) for id, name, given in batch] for batch in batches]
            self._script = PydanticScript(*turns, "done")
            self.agent = durable(PydanticAgent(self._script.model, name="a"), extra_tools=tools)
        self._loop = loop

    @property
    def results(self) -> list[Any]:
        """The results of all calls, in the order of the history."""
        if self._loop == "native":
            return [message.content for message in self._native.requests[-1] if isinstance(message, ToolResult)]
        parts = [
            part for message in self._script.asked[-1] if isinstance(message, ModelRequest) for part in message.parts
        ]
        return [part.content for part in parts if isinstance(part, ToolReturnPart)]
