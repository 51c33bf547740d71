"""Model calls within the nodes of a graph: each waits until the limits of its provider allow it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig

from holdfast.adapters.langgraph.node_calls import RunStopped
from holdfast.core.errors import RunError
from holdfast.core.execution.model_calls import ModelCalls
from holdfast.core.execution.step import StepContext
from holdfast.core.ports import RatePermit

_T = TypeVar("_T")


def limit_model_calls(config: RunnableConfig, context: StepContext) -> RunnableConfig:
    """Return a configuration under which models wait for their permits, if the App has provider limits."""
    if context.attempt.services.ports.rate_limiter is None:
        return config
    return {**config, "callbacks": [_ModelCallHandler(context.model_calls)]}


class _ModelCallHandler(AsyncCallbackHandler):
    """LangChain notifies it of each model call that nodes of the graph make, and waits for it."""

    raise_error = True
    run_inline = True

    def __init__(self, gate: ModelCalls) -> None:
        self._gate, self._loop = gate, asyncio.get_running_loop()
        #: Permits of the calls in progress, by LangChain's id.
        self._permits: dict[UUID, RatePermit | None] = {}

    async def on_chat_model_start(
        self, serialized: dict[str, Any], messages: Any, *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        await self._begin(run_id, serialized, metadata)

    async def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, metadata: Any = None, **kwargs: Any
    ) -> None:
        await self._begin(run_id, serialized, metadata)

    async def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        await self._on_loop(self._end(run_id, _count_tokens(response)))

    async def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        await self._on_loop(self._fail(run_id, error))

    async def _begin(self, run_id: UUID, serialized: dict[str, Any] | None, metadata: Any) -> None:
        name = str((metadata or {}).get("ls_model_name") or (serialized or {}).get("name") or "")
        try:
            self._permits[run_id] = await self._on_loop(self._gate.acquire(name))
        except RunError as exc:  # a shutdown, or the limits cannot be read
            raise RunStopped(exc) from exc

    async def _end(self, run_id: UUID, tokens: int) -> None:
        self._gate.settle(self._permits.pop(run_id, None), tokens)

    async def _fail(self, run_id: UUID, error: BaseException) -> None:
        self._gate.fail(self._permits.pop(run_id, None), error)

    async def _on_loop(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the loop of the run: LangChain serves the callbacks of a sync node on a loop of its own."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _count_tokens(response: LLMResult) -> int:
    messages = [each.message for batch in response.generations for each in batch if isinstance(each, ChatGeneration)]
    return sum(
        message.usage_metadata["total_tokens"]
        for message in messages
        if isinstance(message, AIMessage) and message.usage_metadata is not None
    )
