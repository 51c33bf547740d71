"""AG-UI: a thread is a conversation, a run of the protocol is one turn, an interrupt is an approval."""

import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast

from ag_ui.core import BaseEvent, Message, MessagesSnapshotEvent, RunAgentInput, UserMessage
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.ui.ag_ui import AGUIAdapter, AGUIEventStream
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.run.run_events import Event
from holdfast.web.api.operation import InvalidBody
from holdfast.web.protocols.chat_server import ChatServer, NewMessage, encode_frames, make_json, read_input
from holdfast.web.protocols.translation import ProtocolEvent, Translator
from holdfast.web.protocols.turn_stream import TurnView, find_present_turn, read_history, stream_turn
from holdfast.web.sse import EventStreamResponse


class AGUIServer:
    """Serves the conversations of an App to AG-UI clients."""

    def __init__(self, chat: ChatServer) -> None:
        self._chat = chat

    async def run(self, request: Request) -> Response:
        """Send the last message, or the answers to interrupts, and stream the turn.

        A request that is repeated attaches to its turn. One without a new message attaches to the current turn.
        """
        principal = await self._chat.authenticate(request, "send")
        run_input: RunAgentInput = await read_input(request, AGUIAdapter.build_run_input)
        conversation = await self._chat.open(request, principal, run_input.thread_id)
        answers = _read_answers(run_input)
        if answers is not None:
            await self._chat.answer(conversation, principal, answers)
        message = _find_new_message(run_input.messages) if answers is None else None
        app, run_id = self._chat.app, conversation.run_id
        turns = await read_history(app, run_id)
        if message is not None:
            await self._chat.post(request, principal, conversation, message.text, message.id)
        turn_id = message.id if message is not None else await find_present_turn(app, run_id, turns)
        answered = set(answers.approvals) if answers is not None else set()
        if answered and turn_id is None and turns:
            turn_id = turns[-1].turn_id  # it has ended meanwhile
        # A client that has just sent a message, or an answer, has all that came before.
        is_new = message is not None and all(turn.turn_id != message.id for turn in turns)
        events = self._stream(run_id, turns, turn_id, answered, snapshot=not is_new and not answered)
        stream = AGUIEventStream(run_input)
        frames = encode_frames(stream.encode_stream(stream.transform_stream(events)))
        return EventStreamResponse(frames, expires_at=principal.expires_at)

    async def get_messages(self, request: Request) -> Response:
        """Return the messages of a thread."""
        principal = await self._chat.authenticate(request, "read")
        conversation = await self._chat.open(request, principal, request.path_params["thread_id"])
        turns = await read_history(self._chat.app, conversation.run_id)
        return make_json(_dump(turns))

    async def _stream(
        self, run_id: str, turns: Sequence[TurnView], turn_id: str | None, answered: set[str], *, snapshot: bool
    ) -> AsyncGenerator[Any]:
        """Yield what the client needs: the history if it may not have it, then the events of the turn."""
        earlier, present = _split(turns, turn_id)
        if snapshot:
            known = _dump([*earlier, present.without_answer()])
            yield ProtocolEvent(payload=MessagesSnapshotEvent(messages=known))
        if turn_id is None:
            return

        def retract(text: str) -> BaseEvent:
            return MessagesSnapshotEvent(messages=_dump([*earlier, present]))

        events = _record(stream_turn(self._chat.app, run_id, turn_id, answered=answered), present)
        async with aclosing(Translator(retract).translate(events)) as natives:
            async for native in natives:
                yield native


async def _record(events: AsyncGenerator[Event], turn: TurnView) -> AsyncGenerator[Event]:
    """Yield the events, and add the durable ones to what is known of the turn."""
    known = {event.cursor for event in turn.events}
    async with aclosing(events):
        async for event in events:
            if event.cursor is not None and event.cursor not in known:
                turn.events.append(event)
            yield event


def _read_answers(run_input: RunAgentInput) -> DeferredToolResults | None:
    """Return the answers to interrupts.

    Raises:
        InvalidBody: one is not as the interrupt asked for it.
    """
    adapter = AGUIAdapter(agent=cast(Any, None), run_input=run_input)  # the agent is not asked
    try:
        return adapter.deferred_tool_results
    except UserError as exc:
        raise InvalidBody(str(exc)) from exc


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


def _split(turns: Sequence[TurnView], turn_id: str | None) -> tuple[list[TurnView], TurnView]:
    """Return the turns before this one, and this one as far as it is recorded."""
    earlier: list[TurnView] = []
    for turn in turns:
        if turn.turn_id == turn_id:
            return earlier, turn
        earlier.append(turn)
    return earlier, TurnView(turn_id or "")


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
