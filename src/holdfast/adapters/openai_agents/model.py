"""A model and a provider that record the replies of the models behind them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol

from agents import Handoff, Model, ModelProvider, ModelResponse, Tool
from agents.exceptions import UserError
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

from holdfast.adapters.openai_agents.stream import read_stream
from holdfast.core.reply_stream import ReplyStream

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

    def __init__(self, replies: ReplyRecorder, draft: ReplyStream | None) -> None:
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

    def __init__(self, model: Model, name: str, replies: ReplyRecorder, draft: ReplyStream | None) -> None:
        self._model, self._replies, self._draft = model, replies, draft
        self._name = name or str(getattr(model, "model", ""))

    async def close(self) -> None:
        await self._model.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._model.get_retry_advice(request)

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        async def ask() -> ModelResponse:
            if self._draft is None:
                return await self._model.get_response(*args, **options)
            return await read_stream(self._model.stream_response(*args, **options), self._draft)

        tools, handoffs = options.get("tools", ()), options.get("handoffs", ())
        return await self._replies.get_reply(ask, self._name, tools, handoffs)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise UserError("a durable run asks its models itself: use the option stream of durable()")
