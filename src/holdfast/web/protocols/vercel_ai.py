"""The protocol of the Vercel AI SDK: a chat is a conversation, and its stream can be resumed."""

from collections.abc import Sequence
from typing import Any, Final, cast

from pydantic_ai.ui.vercel_ai import VercelAIAdapter, VercelAIEventStream
from pydantic_ai.ui.vercel_ai.request_types import RegenerateMessage, TextUIPart, UIMessage
from pydantic_ai.ui.vercel_ai.response_types import DataChunk
from starlette.requests import Request
from starlette.responses import Response

from holdfast.runtime.operations.conversations import Conversation
from holdfast.web.api.operation import InvalidBody
from holdfast.web.auth import Principal
from holdfast.web.protocols.chat_server import ChatServer, NewMessage, encode_frames, make_json, read_input
from holdfast.web.protocols.translation import Translator
from holdfast.web.protocols.turn_stream import TurnView, find_present_turn, read_history, stream_turn
from holdfast.web.sse import EventStreamResponse

#: With this version of the SDK tools can ask for an approval.
_SDK_VERSION: Final = 6


class VercelAIServer:
    """Serves the conversations of an App to the Vercel AI SDK."""

    def __init__(self, chat: ChatServer) -> None:
        self._chat = chat

    async def send(self, request: Request) -> Response:
        """Send the last message, or the answers to approval requests, and stream the turn."""
        principal = await self._chat.authenticate(request, "send")
        data = await read_input(request, VercelAIAdapter.build_run_input)
        if isinstance(data, RegenerateMessage):
            raise InvalidBody("regenerate is not supported: send a message, or fork the conversation")
        conversation = await self._chat.open(request, principal, data.id)
        adapter = VercelAIAdapter(agent=cast(Any, None), run_input=data, sdk_version=_SDK_VERSION)
        message = _find_new_message(data.messages)
        if message is not None:
            turn_id = await self._chat.post(request, principal, conversation, message.text, message.id)
            return self._respond(principal, conversation, turn_id, set())
        answers = adapter.deferred_tool_results
        if answers is None:
            raise InvalidBody("the last message is neither a user message nor an answer to an approval request")
        turns = await read_history(self._chat.app, conversation.run_id)
        await self._chat.answer(conversation, principal, answers)
        return self._respond(principal, conversation, turns[-1].turn_id if turns else None, set(answers.approvals))

    async def resume(self, request: Request) -> Response:
        """Stream the current turn from its beginning. 204: there is none."""
        principal = await self._chat.authenticate(request, "read")
        conversation = await self._chat.open(request, principal, request.path_params["chat_id"])
        turns = await read_history(self._chat.app, conversation.run_id)
        turn_id = await find_present_turn(self._chat.app, conversation.run_id, turns)
        return Response(status_code=204) if turn_id is None else self._respond(principal, conversation, turn_id, set())

    async def get_messages(self, request: Request) -> Response:
        """Return the messages of a chat: those of the turns that have ended, and the message of the current one."""
        principal = await self._chat.authenticate(request, "read")
        conversation = await self._chat.open(request, principal, request.path_params["chat_id"])
        turns = await read_history(self._chat.app, conversation.run_id)
        return make_json(_dump(turns))

    def _respond(
        self, principal: Principal, conversation: Conversation[Any], turn_id: str | None, answered: set[str]
    ) -> Response:
        stream = VercelAIEventStream(sdk_version=_SDK_VERSION, server_message_id=f"{turn_id}.answer")
        events = stream_turn(self._chat.app, conversation.run_id, turn_id or "", answered=answered)
        natives = Translator(_retract).translate(events)
        encoded = stream.encode_stream(stream.transform_stream(natives))
        return EventStreamResponse(
            encode_frames(encoded), expires_at=principal.expires_at, headers=stream.response_headers
        )


def _retract(text: str) -> DataChunk:
    """The SDK cannot take back a part: a page hides the text before this one, in the same step."""
    return DataChunk(type="data-draft-retracted", data={"text": text})


def _find_new_message(messages: Sequence[UIMessage]) -> NewMessage | None:
    """Return the last message if it is the user's.

    Raises:
        InvalidBody: it has parts that are not text.
    """
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return None
    texts = [part.text for part in last.parts if isinstance(part, TextUIPart)]
    if len(texts) != len(last.parts):
        raise InvalidBody("the message has parts that are not text: only text is accepted here")
    return NewMessage(last.id, "".join(texts))


def _dump(turns: Sequence[TurnView]) -> list[UIMessage]:
    """Return the messages of turns, with the ids that they have in streams."""
    dumped: list[UIMessage] = []
    for turn in turns:
        for message in VercelAIAdapter.dump_messages(
            (turn if turn.is_over else turn.without_answer()).messages, sdk_version=_SDK_VERSION
        ):
            message.id = turn.turn_id if message.role == "user" else f"{turn.turn_id}.answer"
            dumped.append(message)
    return dumped
