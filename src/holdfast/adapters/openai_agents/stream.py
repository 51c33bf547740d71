"""The complete response of a model that streams it."""

from collections.abc import AsyncIterator
from typing import Any

from agents import ModelResponse, Usage
from agents.exceptions import ModelBehaviorError
from agents.items import TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from holdfast.core.reply_stream import ReplyStream


async def read_stream(events: AsyncIterator[TResponseStreamEvent], reply: ReplyStream) -> ModelResponse:
    """Return the response once it is complete.

    Raises:
        ModelBehaviorError: the provider gave up on the response.
        ConnectionError: the stream ended before the response was complete.
    """
    items: list[Any] = []
    async for event in events:
        if isinstance(event, ResponseTextDeltaEvent):
            await reply.emit_text(event.delta)
        elif isinstance(event, ResponseReasoningTextDeltaEvent | ResponseReasoningSummaryTextDeltaEvent):
            await reply.emit_reasoning(event.delta)
        elif isinstance(event, ResponseOutputItemDoneEvent):
            items.append(event.item)
        elif isinstance(event, ResponseCompletedEvent):
            return _make_response(event.response, items)
        elif event.type in ("response.incomplete", "response.failed", "error"):
            raise ModelBehaviorError(f"the model ended its response with {event.type}: {event.to_json(indent=None)}")
    raise ConnectionError("the stream of the model ended before its response was complete")


def _make_response(response: Response, items: list[Any]) -> ModelResponse:
    """Return the response. Some providers send its items in the stream only."""
    return ModelResponse(
        output=list(response.output) or items,
        usage=_make_usage(response.usage),
        response_id=response.id,
        request_id=getattr(response, "_request_id", None),
    )


def _make_usage(usage: ResponseUsage | None) -> Usage:
    if usage is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=usage.input_tokens_details,
        output_tokens_details=usage.output_tokens_details,
    )
