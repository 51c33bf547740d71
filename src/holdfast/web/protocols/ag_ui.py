"""AG-UI: a thread is a conversation, a run of the protocol is one turn, an interrupt is an approval."""

import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

from ag_ui.core import BaseEvent, Message, MessagesSnapshotEvent, RunAgentInput, UserMessage
from pydantic_ai.ui.ag_ui import AGUIAdapter, AGUIEventStream
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.events import Event
from holdfast.runtime.conversations.conversation import Conversation
from holdfast.web.api.body import InvalidBody
from holdfast.web.protocols.chat import ChatServer, NewMessage, encode_frames, make_json, read_input
from holdfast.web.protocols.translation import ProtocolEvent, Translator
from holdfast.web.protocols.turns import TurnView, find_present_turn, read_history, stream_turn
from holdfast.web.sse import EventStreamResponse


class AGUIServer:
    """Serves the conversations of an App to AG-UI clients."""

    def __init__(self, chat: ChatServer) -> None:
        self._chat = chat

    async def run(self, request: Request) -> Response:
        """Send the last message, or the answers to interrupts, and stream the turn.

        A request that is repeated attaches to its turn. One without a new message attaches to the present turn.
        """
        principal = await self._chat.authenticate(request, "send")
        run_input: RunAgentInput = await read_input(request, AGUIAdapter.build_run_input)
        conversation = await self._chat.open(request, principal, run_input.thread_id)
        adapter = AGUIAdapter(agent=cast(Any, None), run_input=run_input)
        answers = adapter.deferred_tool_results
        if answers is not None:
            await self._chat.answer(conversation, principal, answers)
        message = _find_new_message(run_input.messages) if answers is None else None
        is_new = message is not None and await self._is_unknown(conversation, message)
        if message is not None:
            await conversation.post(message.text, id=message.id)
        stream = AGUIEventStream(run_input, accept=None)
        events = self._stream(conversation, message, set(answers.approvals) if answers else set(), snapshot=not is_new)
        encoded = stream.encode_stream(stream.transform_stream(events))
        return EventStreamResponse(encode_frames(encoded))

    async def get_messages(self, request: Request) -> Response:
        """Return the messages of a thread."""
        principal = await self._chat.authenticate(request, "read")
        conversation = await self._chat.open(request, principal, request.path_params["thread_id"])
        turns = await read_history(self._chat.app, conversation.run_id)
        return make_json(_dump(turns))

    async def _is_unknown(self, conversation: Conversation[Any], message: NewMessage) -> bool:
        return all(turn.turn_id != message.id for turn in await conversation.history())

    async def _stream(
        self, conversation: Conversation[Any], message: NewMessage | None, answered: set[str], *, snapshot: bool
    ) -> AsyncGenerator[Any]:
        """Yield what the client needs: what it does not have of the history, then the events of the turn."""
        app, run_id = self._chat.app, conversation.run_id
        turns = await read_history(app, run_id)
        turn_id = message.id if message is not None else await find_present_turn(app, run_id, turns)
        if answered and turn_id is None and turns:
            turn_id = turns[-1].turn_id  # it has ended meanwhile
        earlier = _take_earlier(turns, turn_id)
        if snapshot and not answered:
            yield ProtocolEvent(payload=MessagesSnapshotEvent(messages=_dump(earlier)))
        if turn_id is None:
            return
        shown: list[Event] = []

        def retract(text: str) -> BaseEvent:
            present = TurnView(turn_id, [*earlier[-1].events, *shown] if earlier else shown, is_over=True)
            return MessagesSnapshotEvent(messages=_dump([*earlier[:-1], present]))

        async def watch() -> AsyncGenerator[Event]:
            async with aclosing(stream_turn(app, run_id, turn_id, answered=answered)) as events:
                async for event in events:
                    if event.cursor is not None:
                        shown.append(event)
                    yield event

        async with aclosing(Translator(retract).translate(watch())) as natives:
            async for native in natives:
                yield native


def _find_new_message(messages: Sequence[Message]) -> NewMessage | None:
    """Return the last message if it is the user's.

    Raises:
        InvalidBody: it has parts that are not text.
    """
    last = messages[-1] if messages else None
    if not isinstance(last, UserMessage):
        return None
    if isinstance(last.content, str):
        return NewMessage(last.id, last.content)
    if any(part.type != "text" for part in last.content):
        raise InvalidBody("the message has parts that are not text: only text is accepted here")
    return NewMessage(last.id, "".join(part.text for part in last.content if part.type == "text"))


def _take_earlier(turns: Sequence[TurnView], turn_id: str | None) -> list[TurnView]:
    """Return the turns before this one, and of this one the message that began it."""
    earlier: list[TurnView] = []
    for turn in turns:
        if turn.turn_id == turn_id:
            return [*earlier, TurnView(turn_id, turn.events[:1], is_over=True)]
        earlier.append(turn)
    return earlier


def _dump(turns: Sequence[TurnView]) -> list[Message]:
    """Return the messages of turns, with the same ids each time."""
    dumped: list[Message] = []
    for turn in turns:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            messages = AGUIAdapter.dump_messages(turn.messages)
        for number, message in enumerate(messages):
            message.id = turn.turn_id if number == 0 else f"{turn.turn_id}.{number}"
        dumped += messages
    return dumped
