"""Models and loggers for tests: what they say is decided by how far the conversation is, never by who asks."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.run.message import Message, Reply, ToolCall
from holdfast.run.tool import ToolSchema
from holdfast.run.usage import Usage

#: One turn of a script: a reply, an answer, an error to raise, or a function of the conversation.
Turn = Reply | str | BaseException | Callable[[Sequence[Message]], Awaitable[Reply]]


def call(call_id: str, tool: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(id=call_id, name=tool, arguments=arguments)


def asks(*calls: ToolCall, text: str = "", usage: Usage | None = None) -> Reply:
    return Reply(text=text, tool_calls=calls, usage=usage or Usage())


class Script:
    """A model that gives its n-th reply to a conversation with n replies in it, so a resumed run goes on in the script.

    Remembers every conversation it was shown, and the tools it was offered.
    """

    def __init__(self, *turns: Turn) -> None:
        self._turns = turns
        self.asked: list[tuple[Message, ...]] = []
        self.offered: list[tuple[ToolSchema, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.asked.append(tuple(messages))
        self.offered.append(tuple(tools))
        turn = self._turns[sum(isinstance(message, Reply) for message in messages)]
        if isinstance(turn, Reply):
            return turn
        if isinstance(turn, str):
            return Reply(text=turn)
        if isinstance(turn, BaseException):
            raise turn
        return await turn(messages)
