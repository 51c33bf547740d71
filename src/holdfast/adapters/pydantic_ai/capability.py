"""The hooks that pydantic-ai calls: they make tool calls durable and record requests to the model."""

import copy
from collections.abc import Sequence
from typing import Any, Self

from pydantic_ai import AgentRun, DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.capabilities import AbstractCapability, WrapperCapability, on_event
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.exceptions import ModelRetry, RetryModelRequest, SkipModelRequest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from holdfast.adapters.pydantic_ai.batch import Batch
from holdfast.adapters.pydantic_ai.state import AdapterState
from holdfast.adapters.pydantic_ai.transcript import Transcript, get_open_parts
from holdfast.core.execution.steps import StepContext

#: pydantic-ai refuses more than 100 attempts of one request. After these the loop makes a new request.
_MAX_ATTEMPTS = 50


class DurableCapability(WrapperCapability[Any]):
    """Wraps all capabilities of one run of an agent.

    It is outermost: a result is recorded after the agent's own capabilities changed it, and does not pass through them
    again. It wraps the root instead of joining the list, because pydantic-ai makes a context for each capability at
    each of some twenty hooks a step, which would be most of the cost of durability.
    """

    def __init__(
        self,
        wrapped: AbstractCapability[Any],
        context: StepContext,
        transcript: Transcript,
        batch: Batch,
        adapter_state: AdapterState,
    ) -> None:
        super().__init__(wrapped=wrapped)
        self._context, self._transcript, self._batch, self._adapter_state = context, transcript, batch, adapter_state

    @classmethod
    def install(
        cls,
        run: AgentRun[Any, Any],
        context: StepContext,
        transcript: Transcript,
        batch: Batch,
        adapter_state: AdapterState,
    ) -> Self:
        """Wrap the root capability of a run that has not begun."""
        deps = run.ctx.deps
        tools = deps.tool_manager
        assert tools.root_capability is deps.root_capability, "tools are called through the run's capabilities"
        capability = cls(deps.root_capability, context, transcript, batch, adapter_state)
        deps.root_capability = tools.root_capability = capability
        # Calls that wait end pydantic-ai's run, also if its output cannot be `DeferredToolRequests`: the agent's run
        # continues with their results.
        deps.output_schema = copy.copy(deps.output_schema)
        deps.output_schema.allows_deferred_tools = True
        return capability

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # Recorded before history processors run. Messages that tools have queued join the request only in `wrapped`.
        queued = _get_queued_messages(ctx)
        await self._record_request([*request_context.messages, *queued] if queued else request_context.messages)
        self._adapter_state.restore_tool_retries(ctx.tool_manager)
        request_context = await self.wrapped.before_model_request(ctx, request_context)
        queued = _get_queued_messages(ctx)
        if queued and isinstance(request_context.messages[-1], ModelRequest):
            await self._record_request(queued)  # queued by hooks just now: they join this request too
        await self._context.model_gate.enter(request_context.model.model_id)
        return request_context

    async def _record_request(self, messages: Sequence[ModelMessage]) -> None:
        if self._transcript.add_request(get_open_parts(messages)):
            await self._context.run.save()

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Ask for another attempt after a transient error. Called before any part of a stream has arrived."""
        try:
            return await self.wrapped.on_model_request_error(ctx, request_context=request_context, error=error)
        except (ModelRetry, RetryModelRequest, SkipModelRequest):
            raise
        except Exception as exc:  # the error, or one that the agent's own capability made of it
            if request_context.attempt >= _MAX_ATTEMPTS:
                raise
            await self._context.model_retries.on_error(exc)
        await self._context.model_gate.enter(request_context.model.model_id)
        raise RetryModelRequest

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        async def within(args: dict[str, Any]) -> Any:
            return await self.wrapped.wrap_tool_execute(ctx, call=call, tool_def=tool_def, args=args, handler=handler)

        return await self._batch.execute(ctx, call, args, within)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        answers = self._batch.deferred.find_answers(requests)
        rest = self._batch.deferred.list_undecided(requests.remaining(answers))
        if rest is not None:
            # A handler of the agent's own goes before a person.
            handled = await self.wrapped.handle_deferred_tool_calls(ctx, requests=rest)
            if handled is not None:
                answers.update(handled)
            self._batch.deferred.add_waits(rest, handled)
        return answers if answers.approvals or answers.calls else None


class StreamingDurableCapability(DurableCapability):
    """Emits the text of replies as it arrives. pydantic-ai streams if a capability listens to these events."""

    @on_event(PartStartEvent)
    async def _on_part_start(self, ctx: RunContext[Any], event: PartStartEvent) -> None:
        if isinstance(event.part, TextPart):
            await self._context.emit_text(event.part.content)
        elif isinstance(event.part, ThinkingPart):
            await self._context.emit_reasoning(event.part.content)

    @on_event(PartDeltaEvent)
    async def _on_part_delta(self, ctx: RunContext[Any], event: PartDeltaEvent) -> None:
        if isinstance(event.delta, TextPartDelta):
            await self._context.emit_text(event.delta.content_delta)
        elif isinstance(event.delta, ThinkingPartDelta):
            await self._context.emit_reasoning(event.delta.content_delta or "")


def _get_queued_messages(ctx: RunContext[Any]) -> list[ModelMessage]:
    """Return the queued messages that join the next request."""
    return [message for each in ctx.pending_messages or () if each.priority == "asap" for message in each.messages]
