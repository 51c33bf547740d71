"""Recorded models of the Agents SDK: a reply in the journal is returned, a new one is streamed and recorded."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agents import FunctionTool, Handoff, Model, ModelProvider, ModelResponse, Tool, Usage
from agents.exceptions import ModelBehaviorError, UserError
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItemDoneEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from holdfast.adapters.openai_agents.batch import get_original_tool
from holdfast.core.execution.step import StepContext


@dataclass
class NamedResponse(ModelResponse):
    """A response that says which model gave it. Those of the SDK itself do not."""

    model: str = ""


async def read_stream(events: AsyncIterator[TResponseStreamEvent], reply: StepContext) -> ModelResponse:
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
    return NamedResponse(
        model=response.model,
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


#: Asks a model once.
Ask = Callable[[], Awaitable[ModelResponse]]


class ReplyRecorder(Protocol):
    """Records the replies of models."""

    async def get_reply(
        self, ask: Ask, model: str, tools: Sequence[Tool], handoffs: Sequence[Handoff[Any, Any]]
    ) -> ModelResponse:
        """Return the recorded reply, or ask the model and record what it says."""
        ...


class ModelRecorder:
    """Wraps models and providers for one attempt of a run."""

    def __init__(self, replies: ReplyRecorder, draft: StepContext | None) -> None:
        """Record with `replies`. With a draft, models are asked for streams, whose text goes there."""
        self._replies, self._draft = replies, draft

    def wrap(self, model: Model, name: str = "") -> Model:
        """Return a model whose replies are recorded."""
        return _RecordedModel(model, name, self._replies, self._draft)

    def wrap_provider(self, provider: ModelProvider) -> ModelProvider:
        """Return a provider whose models are recorded."""
        return _RecordedProvider(provider, self)


class _RecordedProvider(ModelProvider):
    def __init__(self, provider: ModelProvider, recorder: ModelRecorder) -> None:
        self._provider, self._recorder = provider, recorder

    def get_model(self, model_name: str | None) -> Model:
        return self._recorder.wrap(self._provider.get_model(model_name), model_name or "")

    async def aclose(self) -> None:
        await self._provider.aclose()


class _RecordedModel(Model):
    """Asks another model unless the reply is recorded. With a draft, it asks for the reply as a stream."""

    def __init__(self, model: Model, name: str, replies: ReplyRecorder, draft: StepContext | None) -> None:
        self._model, self._replies, self._draft = model, replies, draft
        self._name = name or str(getattr(model, "model", ""))

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._model.get_retry_advice(request)

    def _supports_default_prompt_cache_key(self) -> bool:
        """Whether the SDK may send a cache key, made from the run's `group_id`. The SDK looks for this method."""
        supports = getattr(self._model, "_supports_default_prompt_cache_key", None)
        return supports is not None and bool(supports())

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        tools, handoffs = options.get("tools", ()), options.get("handoffs", ())
        if tools:  # the model is sent those of the author
            options["tools"] = [get_original_tool(tool) if isinstance(tool, FunctionTool) else tool for tool in tools]

        async def ask() -> ModelResponse:
            if self._draft is None:
                return await self._model.get_response(*args, **options)
            return await read_stream(self._model.stream_response(*args, **options), self._draft)

        return await self._replies.get_reply(ask, self._name, tools, handoffs)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise UserError("a durable run asks its models itself: use the option stream of durable()")
