"""What pydantic-ai calls within a turn: a capability that makes tool calls once and hears what the model is sent."""

from typing import Any

from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, on_event
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition

from holdfast.adapters.pydantic_ai.batch import Batch
from holdfast.adapters.pydantic_ai.conversation import Conversation, open_parts
from holdfast.adapters.pydantic_ai.notes import Notes
from holdfast.run.drive import Drive
from holdfast.run.ports import RunEvent


class Journal(AbstractCapability[Any]):
    """Stands between one run of an agent and its tools and model."""

    def __init__(self, drive: Drive, conversation: Conversation, batch: Batch, notes: Notes) -> None:
        self._drive, self._conversation, self._batch, self._notes = drive, conversation, batch, notes

    def get_ordering(self) -> CapabilityOrdering:
        # Outside of the agent's own capabilities: what they made of a result is what is recorded, and a recorded
        # result does not go through them again.
        return CapabilityOrdering(position="outermost")

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # What tools and hooks have put into the queue joins the request only now.
        if self._conversation.ask(open_parts(request_context.messages)):
            await self._drive.live.save()
        self._notes.restore_tool_retries(ctx.tool_manager)
        return request_context

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        return await self._batch.execute(ctx, call, args, handler)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        return self._batch.answers(requests)


class StreamingJournal(Journal):
    """A journal that lets the run's text out as the model writes it. pydantic-ai streams because it listens."""

    @on_event(PartStartEvent)
    async def _begins(self, ctx: RunContext[Any], event: PartStartEvent) -> None:
        if isinstance(event.part, TextPart):
            await self._wrote(event.part.content)

    @on_event(PartDeltaEvent)
    async def _goes_on(self, ctx: RunContext[Any], event: PartDeltaEvent) -> None:
        if isinstance(event.delta, TextPartDelta):
            await self._wrote(event.delta.content_delta)

    async def _wrote(self, text: str) -> None:
        if text:
            live = self._drive.live
            await live.emit(RunEvent(kind="text", iteration=live.state.iteration + 1, text=text))
