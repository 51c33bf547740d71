"""Model calls within the nodes of a graph: each waits until the limits of its provider allow it."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig

from holdfast.adapters.langgraph.node_calls import RunStopped
from holdfast.core.errors import RunError
from holdfast.core.execution.model_calls import ModelCalls
from holdfast.core.execution.step import StepContext
from holdfast.core.ports import RatePermit


def limit_model_calls(config: RunnableConfig, context: StepContext) -> RunnableConfig:
    """Return a configuration under which models wait for their permits, if the App has provider limits."""
    if context.attempt.services.ports.rate_limiter is None:
        return config
    permits = _Permits(context.model_calls)
    # In this order: LangChain does not await the handlers after one that raises.
    return {**config, "callbacks": [_SyncHandler(permits), _AsyncHandler(permits)]}


class _Permits:
    """The permits of the model calls in progress. Belongs to the event loop of the run."""

    def __init__(self, gate: ModelCalls) -> None:
        self._gate = gate
        self._loop = asyncio.get_running_loop()
        #: By LangChain's id of the call.
        self._permits: dict[UUID, RatePermit | None] = {}

    async def begin(self, run_id: UUID, serialized: dict[str, Any] | None, metadata: Any) -> None:
        """Return when the model may be called."""
        name = str((metadata or {}).get("ls_model_name") or (serialized or {}).get("name") or "")
        try:
            self._permits[run_id] = await self._gate.acquire(name)
        except RunError as exc:  # a shutdown, or the limits cannot be read
            raise RunStopped(exc) from exc

    async def end(self, run_id: UUID, response: LLMResult) -> None:
        self._gate.settle(self._permits.pop(run_id, None), _count_tokens(response))

    async def fail(self, run_id: UUID, error: BaseException) -> None:
        self._gate.fail(self._permits.pop(run_id, None), error)

    @property
    def is_on_loop(self) -> bool:
        """Whether the event loop of the run executes the caller."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:  # a thread without an event loop
            return False

    def wait(self, work: Coroutine[Any, Any, None]) -> None:
        """Execute `work` on the event loop of the run, for a node in a thread."""
        if self.is_on_loop:
            work.close()  # of an async node: the other handler has it
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _AsyncHandler(AsyncCallbackHandler):
    """LangChain notifies it of each model call that async nodes of the graph make, and waits for it.

    For sync nodes LangChain would only log its errors.
    """

    raise_error = True
    run_inline = True

    def __init__(self, permits: _Permits) -> None:
        self._calls = permits

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: Any, *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        if self._calls.is_on_loop:
            await self._calls.begin(run_id, serialized, metadata)

    async def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        if self._calls.is_on_loop:
            await self._calls.begin(run_id, serialized, metadata)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        if self._calls.is_on_loop:
            await self._calls.end(run_id, response)

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        if self._calls.is_on_loop:
            await self._calls.fail(run_id, error)


class _SyncHandler(BaseCallbackHandler):
    """The same for nodes in threads. LangChain raises its errors there."""

    raise_error = True
    run_inline = True

    def __init__(self, permits: _Permits) -> None:
        self._calls = permits

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: Any, *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        self._calls.wait(self._calls.begin(run_id, serialized, metadata))

    def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        self._calls.wait(self._calls.begin(run_id, serialized, metadata))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        self._calls.wait(self._calls.end(run_id, response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._calls.wait(self._calls.fail(run_id, error))


def _count_tokens(response: LLMResult) -> int:
    messages = [each.message for batch in response.generations for each in batch if isinstance(each, ChatGeneration)]
    return sum(
        message.usage_metadata["total_tokens"]
        for message in messages
        if isinstance(message, AIMessage) and message.usage_metadata is not None
    )
