"""Turns events of holdfast into those of pydantic-ai, from which its adapters make the protocols of front ends."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import (
    AgentRunResult,
    AgentRunResultEvent,
    CustomEvent,
    DeferredToolRequests,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.ui import NativeEvent

from holdfast.core.run.run_events import (
    CallsWaiting,
    DraftRetracted,
    Event,
    ReasoningDelta,
    ReplyAdded,
    TextDelta,
    ToolCalled,
    ToolReturned,
)
from holdfast.core.run.waiting import WaitingCall

#: The calls of one reply are recorded together. This bounds the wait for the next one.
_NEXT_CALL_TIMEOUT = 0.05

_RESULT = TypeAdapter(AgentRunResult[Any])


@dataclass(kw_only=True)
class ProtocolEvent(CustomEvent, name="holdfast"):
    """An event of the protocol itself, which the adapter passes on unchanged."""

    payload: Any

    def to_payload(self) -> Any:
        return self.payload


class Translator:
    """Translates the events of one turn. What was drafted is not repeated when the reply is recorded."""

    def __init__(self, retract: Callable[[str], Any]) -> None:
        """Make a translator.

        Args:
            retract: returns the protocol's event that takes back the text of a reply that was cut off.
        """
        self._retract = retract
        self._index = 0
        self._open: TextPart | ThinkingPart | None = None
        #: The text and the reasoning of the reply in progress, as far as they were sent.
        self._drafts = {TextPart: "", ThinkingPart: ""}

    async def translate(self, events: AsyncGenerator[Event]) -> AsyncGenerator[NativeEvent]:
        """Yield the events of pydantic-ai."""
        async with aclosing(_group_calls(events)) as groups:
            async for group in groups:
                for native in self._translate_calls(group) if len(group) > 1 else self._translate(group[0]):
                    yield native

    def _translate(self, event: Event) -> Iterator[NativeEvent]:
        match event:
            case ReasoningDelta():
                yield from self._extend(ThinkingPart, event.text)
            case TextDelta():
                yield from self._extend(TextPart, event.text)
            case ReplyAdded():
                yield from self._complete(event)
            case DraftRetracted():
                yield from self._take_back()
            case ToolCalled():
                yield from self._translate_calls([event])
            case ToolReturned():
                yield FunctionToolResultEvent(make_return_part(event))
            case CallsWaiting():
                approvals = [call for call in event.calls if call.kind == "approval" and call.decision is None]
                if approvals:
                    yield make_approval_request(approvals)

    def _translate_calls(self, calls: Sequence[Event]) -> Iterator[NativeEvent]:
        """First all calls of the reply, then their execution: a call after that would begin another reply."""
        parts = [make_call_part(call) for call in calls if isinstance(call, ToolCalled)]
        for part in parts:
            yield PartStartEvent(index=self._index, part=part)
            yield PartEndEvent(index=self._index, part=part)
            self._index += 1
        for part in parts:
            yield FunctionToolCallEvent(part, args_valid=True)

    def _extend(self, kind: type[TextPart] | type[ThinkingPart], text: str) -> Iterator[NativeEvent]:
        if not text:
            return
        text = text.encode(errors="replace").decode()  # a delta may end within a surrogate pair
        if not isinstance(self._open, kind):
            yield from self._close()
            self._open = kind(content="")
            yield PartStartEvent(index=self._index, part=self._open)
        delta = TextPartDelta(text) if kind is TextPart else ThinkingPartDelta(content_delta=text)
        yield PartDeltaEvent(index=self._index, delta=delta)
        self._drafts[kind] += text

    def _close(self) -> Iterator[NativeEvent]:
        if self._open is not None:
            kind = type(self._open)
            yield PartEndEvent(index=self._index, part=kind(content=self._drafts[kind]))
            self._open = None
            self._index += 1

    def _complete(self, reply: ReplyAdded) -> Iterator[NativeEvent]:
        """Send what is missing of the recorded reply."""
        whole = {ThinkingPart: reply.reasoning, TextPart: reply.text}
        if not all(text.startswith(self._drafts[kind]) for kind, text in whole.items()):
            yield from self._take_back()  # the draft of an attempt of which nothing else is known
        for kind, text in whole.items():
            yield from self._extend(kind, text[len(self._drafts[kind]) :])
        yield from self._close()
        self._drafts = dict.fromkeys(self._drafts, "")
        self._index = 0

    def _take_back(self) -> Iterator[NativeEvent]:
        drafted = self._drafts[TextPart]
        yield from self._close()
        if any(self._drafts.values()):
            yield ProtocolEvent(payload=self._retract(drafted))
        self._drafts = dict.fromkeys(self._drafts, "")


async def _group_calls(events: AsyncGenerator[Event]) -> AsyncGenerator[Sequence[Event]]:
    """Yield the events one by one, but the tool calls of one reply together."""
    calls: list[Event] = []
    coming: asyncio.Task[Event | None] | None = None
    try:
        while True:
            coming = coming or asyncio.create_task(_read_next(events))
            done, _ = await asyncio.wait({coming}, timeout=_NEXT_CALL_TIMEOUT if calls else None)
            event = coming.result() if done else None
            if calls and not (done and isinstance(event, ToolCalled)):
                yield calls
                calls = []
            if not done:
                continue
            coming = None
            if event is None:
                return
            if isinstance(event, ToolCalled):
                calls.append(event)
            else:
                yield [event]
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})
        await events.aclose()


async def _read_next(events: AsyncGenerator[Event]) -> Event | None:
    return await anext(events, None)


def make_call_part(call: ToolCalled) -> ToolCallPart:
    """Return a tool call as the part of a reply."""
    arguments = call.arguments if isinstance(call.arguments, dict | str) else {"arguments": call.arguments}
    return ToolCallPart(tool_name=call.tool, args=arguments, tool_call_id=call.call_id)


def make_return_part(result: ToolReturned) -> ToolReturnPart:
    """Return the result of a tool call as the part of a request."""
    return ToolReturnPart(
        tool_name=result.tool,
        content=result.content,
        tool_call_id=result.call_id,
        outcome="failed" if result.error else "success",
    )


def make_approval_request(calls: Sequence[WaitingCall]) -> NativeEvent:
    """Return the result of a run that waits for these approvals."""
    parts = [ToolCallPart(tool_name=call.tool, args=call.arguments, tool_call_id=call.call_id) for call in calls]
    messages: list[ModelMessage] = [ModelResponse(parts=list(parts))]
    result = _RESULT.validate_python({"output": DeferredToolRequests(approvals=parts), "messages": messages})
    return AgentRunResultEvent(result)
