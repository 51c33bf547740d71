"""A deterministic model for tests: its reply depends only on the number of replies in the conversation."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.core.agents.tool import ToolSchema
from holdfast.core.run.messages import Message, Reply, ToolCall, Usage

#: One turn of a script: a reply, an answer, an error to raise, or a function of the conversation.
Turn = Reply | str | BaseException | Callable[[Sequence[Message]], Awaitable[Reply]]


def call(call_id: str, tool: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=tool, arguments=arguments)


def tool_reply(*calls: ToolCall, text: str = "", usage: Usage | None = None) -> Reply:
    return Reply(text=text, tool_calls=calls, usage=usage or Usage())


class ScriptedModel:
    """A model that returns turn n to a conversation with n replies, so a resumed run continues in the script.

    Records every conversation it receives, and the tools it is offered.
    """

    def __init__(self, *turns: Turn) -> None:
        self._turns = turns
        self.requests: list[tuple[Message, ...]] = []
        self.offered_tools: list[tuple[ToolSchema, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.requests.append(tuple(messages))
        self.offered_tools.append(tuple(tools))
        turn = self._turns[sum(isinstance(message, Reply) for message in messages)]
        if isinstance(turn, Reply):
            return turn
        if isinstance(turn, str):
            return Reply(text=turn)
        if isinstance(turn, BaseException):
            raise turn
        return await turn(messages)
