"""The turns of a conversation for a front end: those that have ended as history, the current one as a stream."""

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.store import END
from holdfast.core.errors import TurnFailed
from holdfast.core.run.prompt import summarize_prompt
from holdfast.core.run.run_events import (
    CallsWaiting,
    Event,
    MessageAdded,
    ReplyAdded,
    ToolCalled,
    ToolReturned,
    TurnFinished,
    TurnStarted,
)
from holdfast.core.run.turns import INPUT_TOPICS
from holdfast.web.protocols.translation import make_call_part, make_return_part


@dataclass(slots=True)
class TurnView:
    """One turn as far as it is recorded."""

    turn_id: str
    events: list[Event] = field(default_factory=list)
    is_over: bool = False

    def without_answer(self) -> "TurnView":
        """Return the turn with nothing but the message that began it."""
        asked = [event for event in self.events if isinstance(event, MessageAdded) and event.role == "user"]
        return TurnView(self.turn_id, list[Event](asked[:1]))

    @property
    def messages(self) -> Sequence[ModelMessage]:
        """The messages of the turn, as those of pydantic-ai."""
        messages: list[ModelMessage] = []
        for event in self.events:
            match event:
                case MessageAdded(role="user"):
                    text = event.content if isinstance(event.content, str | list) else [event.content]
                    messages.append(ModelRequest(parts=[UserPromptPart(summarize_prompt(text))]))
                case ReplyAdded():
                    thinking = [ThinkingPart(event.reasoning)] if event.reasoning else []
                    text_parts = [TextPart(event.text)] if event.text else []
                    messages.append(ModelResponse(parts=[*thinking, *text_parts]))
                case ToolCalled() if messages and isinstance(messages[-1], ModelResponse):
                    messages[-1].parts = [*messages[-1].parts, make_call_part(event)]
                case ToolReturned():
                    _add_return(messages, make_return_part(event))
        return messages


def _add_return(messages: list[ModelMessage], part: ToolReturnPart) -> None:
    last = messages[-1] if messages else None
    if isinstance(last, ModelRequest) and isinstance(last.parts[-1], ToolReturnPart):
        last.parts = [*last.parts, part]
    else:
        messages.append(ModelRequest(parts=[part]))


async def read_history(app: App, run_id: str) -> list[TurnView]:
    """Return the turns of a conversation as far as they are recorded, oldest first. None if nothing was sent to it."""
    turns: list[TurnView] = []
    for event in await _read_durable(app, run_id):
        match event:
            case TurnStarted():
                turns.append(TurnView(event.turn_id))
            case TurnFinished() if turns:
                turns[-1].is_over = True
            case _ if turns:
                turns[-1].events.append(event)
    return turns


async def _read_durable(app: App, run_id: str) -> list[Event]:
    """Return the events that are recorded now."""
    found: list[Event] = []
    with suppress(RunNotFound):
        async with aclosing(app.events(run_id)) as events:
            async for event in events:
                if event.cursor is None:
                    break  # the present follows
                found.append(event)
    return found


async def find_present_turn(app: App, run_id: str, turns: Sequence[TurnView]) -> str | None:
    """Return the id of the turn in progress, or of the first message that waits for its turn."""
    if turns and not turns[-1].is_over:
        return turns[-1].turn_id
    assert app.store is not None
    with suppress(RunNotFound):
        for mail in (await app.store.load(run_id, after=END)).mail:
            if mail.topic in INPUT_TOPICS:
                return mail.mail_id
    return None


async def stream_turn(app: App, run_id: str, turn_id: str, *, answered: Collection[str] = ()) -> AsyncGenerator[Event]:
    """Yield the events of a turn from its beginning until it ends, or waits for an approval.

    Args:
        answered: calls that the client has just answered. It has all that came before them.

    Raises:
        TurnFailed: it ended without an answer.
    """
    missing = set(answered)
    is_present = False
    async with aclosing(app.events(run_id)) as events:
        async for event in events:
            match event:
                case TurnStarted():
                    is_present = event.turn_id == turn_id
                case TurnFinished() if event.turn_id == turn_id:
                    if event.status != "done":
                        raise TurnFailed(run_id, turn_id, event.error)
                    return
                case ToolCalled() if is_present and missing:
                    missing.discard(event.call_id)
                case CallsWaiting() if is_present:
                    if _asks_for_approval(event, answered):
                        yield event
                        return
                case _ if is_present and not missing:
                    yield event


def _asks_for_approval(event: CallsWaiting, answered: Collection[str]) -> bool:
    return any(
        call.kind == "approval" and call.decision is None and call.call_id not in answered for call in event.calls
    )
