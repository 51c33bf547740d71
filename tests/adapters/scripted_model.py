"""A model of pydantic-ai for tests: what it says is decided by how far the conversation is, never by who asks."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from pydantic_ai import BinaryContent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

#: One turn of a script: an answer, calls, a whole reply, an error to raise, or a function of the conversation.
Turn = str | list[ToolCallPart] | ModelResponse | BaseException | Callable[[list[ModelMessage]], ModelResponse]


def call(call_id: str, tool: str, /, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, call_id)


class ScriptedModel:
    """Gives its n-th reply to a conversation with n replies in it, so a resumed run continues in the script.

    Remembers every conversation it was shown, and what it was offered with it.
    """

    def __init__(self, *turns: Turn) -> None:
        self._turns = turns
        self.asked: list[list[ModelMessage]] = []
        self.offered: list[AgentInfo] = []

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._reply, stream_function=self._stream)

    def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(messages)
        self.offered.append(info)
        turn = self._turns[sum(isinstance(message, ModelResponse) for message in messages)]
        if isinstance(turn, str):
            return ModelResponse(parts=[TextPart(turn)])
        if isinstance(turn, list):
            return ModelResponse(parts=turn)
        if isinstance(turn, BaseException):
            raise turn
        return turn if isinstance(turn, ModelResponse) else turn(messages)

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for place, part in enumerate(self._reply(messages, info).parts):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield f"{word} "
            elif isinstance(part, ToolCallPart):
                yield {place: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}


def get_texts(messages: Sequence[ModelMessage]) -> list[tuple[str, Any]]:
    """A conversation without ids and times: the kind of each part and its content."""
    return [
        (part.part_kind, _plain(getattr(part, "content", None) or getattr(part, "args", None)))
        for message in messages
        for part in message.parts
    ]


def _plain(content: Any) -> Any:
    # A picture is of a class of its own once it was read back.
    if isinstance(content, BinaryContent):
        return content.media_type, content.data
    return [_plain(each) for each in content] if isinstance(content, list) else content
