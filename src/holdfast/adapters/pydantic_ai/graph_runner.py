"""Runs pydantic-ai's graph node by node, with hooks around each model and tool call."""

import copy
import functools
from collections.abc import Sequence
from typing import Any, Self

from pydantic_ai import AgentRun, CallToolsNode, DeferredToolRequests, DeferredToolResults, ModelRequestNode, RunContext
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
from pydantic_graph import End

from holdfast.adapters.pydantic_ai.batch import PydanticAIBatch
from holdfast.adapters.pydantic_ai.history import Counters, PydanticAIHistory, get_open_parts, make_steering_parts
from holdfast.adapters.pydantic_ai.message_codec import load_prompt, replace_unstorable
from holdfast.core.execution.step import StepContext


class GraphRunner:
    """Runs one agent run of pydantic-ai from node to node."""

    def __init__(
        self,
        context: StepContext,
        run: AgentRun[Any, Any],
        history: PydanticAIHistory,
        batch: PydanticAIBatch,
        counters: Counters,
    ) -> None:
        """Attach to `run`, with the counters of earlier attempts."""
        self._context, self._run, self._history, self._batch, self._counters = (
            context,
            run,
            history,
            batch,
            counters,
        )
        self._state, self._deps = run.ctx.state, run.ctx.deps
        self._state.output_retries_used = counters.output_retries
        if history.has_started:
            # pydantic-ai's own run continues: the open reply is that of a request which was made.
            self._state.run_step = context.state.phase_steps + history.ends_with_reply
            self._state.run_id = history.find_run_id() or self._state.run_id
        self._deps.prompt = load_prompt(context.prompt) if context.prompt else history.find_prompt()
        #: The unanswered reply that ends the saved conversation.
        self._resumed_reply: ModelResponse | None = None
        #: The error of a request to the model.
        self.request_error: Exception | None = None
        #: The run of pydantic-ai ended because calls wait.
        self.has_waiting_calls = False

    async def run(self) -> Any:
        """Run all nodes and return the output, which is meaningless if `has_waiting_calls` is set."""
        node = await self._start(self._run.next_node) if self._run.result is None else None
        while node is not None and not isinstance(node, End):
            if isinstance(node, ModelRequestNode):
                node = await self._request_reply(node)
            elif isinstance(node, CallToolsNode):
                node = await self._execute_calls(node)
            else:
                node = await self._run.next(node)
        assert self._run.result is not None, "a run that has ended has a result"
        return self._run.result.output

    async def _start(self, node: Any) -> Any:
        following = await self._run.next(node)
        messages = self._state.message_history
        if not self._history.has_started:
            assert isinstance(following, ModelRequestNode), "a prompt makes a request"
            await self._history.start(messages, following.request)
        elif self._history.ends_with_reply:
            if not isinstance(following, CallToolsNode):
                reply = messages[-1]
                assert isinstance(reply, ModelResponse)
                # For a reply without calls an agent with instructions would ask the model again.
                following = CallToolsNode(reply)
            self._resumed_reply = following.model_response
        return following

    async def _request_reply(self, node: ModelRequestNode[Any, Any]) -> Any:
        steered = await self._context.begin_step(functools.partial(self._prepare_request, node))
        if steered:
            node.request.parts = [*node.request.parts, *make_steering_parts(steered)]
            self._history.add_request(node.request.parts[-len(steered) :])
        try:
            following = await self._run.next(node)
        except Exception as exc:
            self.request_error = exc
            raise
        await self._record_reply(following)
        return following

    async def _prepare_request(self, node: ModelRequestNode[Any, Any]) -> None:
        """Record the request in the history, and compact the history if the agent says so."""
        if node.is_resuming_without_prompt:
            self._history.mark_recorded(node.request.parts)  # some are new objects, such as dynamic prompts
        else:
            self._history.add_request(node.request.parts)
        shorter = await self._history.compact()
        if shorter is not None:
            self._state.message_history[:], node.request = shorter

    async def _record_reply(self, following: Any) -> None:
        last = self._state.message_history[-1]
        reply = following.model_response if isinstance(following, CallToolsNode) else last
        self._context.model_calls.on_reply(reply.model_name or "" if isinstance(reply, ModelResponse) else "")
        self._batch.count_usage()
        if isinstance(reply, ModelResponse):
            replace_unstorable(reply)
            self._history.add_reply(reply)
            await self._context.emit_reply(reply.text or "")
        if isinstance(following, ModelRequestNode):  # a hook of the agent refused the reply
            self._history.add_request(following.request.parts)
            await self._end_step()

    async def _execute_calls(self, node: CallToolsNode[Any, Any]) -> Any:
        reply, resumed = node.model_response, self._resumed_reply is node.model_response
        self._resumed_reply = None
        self._counters.restore_tool_retries(self._deps.tool_manager)
        await self._batch.open(self._deps.tool_manager, reply, resumed=resumed)
        following: Any = await self._run.next(node)
        over = isinstance(following, End)
        if over and isinstance(following.data.output, DeferredToolRequests):
            self.has_waiting_calls = True
            return following
        parts = [*get_open_parts(self._state.message_history), *(() if over else following.request.parts)]
        known = resumed and over and (self._history.has_output or not reply.tool_calls)
        self._history.add_results(self._batch.close(parts), parts, final=over)
        if not known:
            await self._end_step()
        if over and self._context.has_messages:
            return ModelRequestNode(ModelRequest(parts=[]))
        return following

    async def _end_step(self) -> None:
        self._counters.record_retries(self._deps.tool_manager, self._state.output_retries_used)
        self._counters.write_to(self._context.state)
        await self._context.end_step()


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
        history: PydanticAIHistory,
        batch: PydanticAIBatch,
        counters: Counters,
    ) -> None:
        super().__init__(wrapped=wrapped)
        self._context, self._history, self._batch, self._counters = context, history, batch, counters

    @classmethod
    def install(
        cls,
        run: AgentRun[Any, Any],
        context: StepContext,
        history: PydanticAIHistory,
        batch: PydanticAIBatch,
        counters: Counters,
    ) -> Self:
        """Wrap the root capability of a run that has not begun."""
        deps = run.ctx.deps
        tools = deps.tool_manager
        assert tools.root_capability is deps.root_capability, "tools are called through the run's capabilities"
        capability = cls(deps.root_capability, context, history, batch, counters)
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
        self._counters.restore_tool_retries(ctx.tool_manager)
        request_context = await self.wrapped.before_model_request(ctx, request_context)
        queued = _get_queued_messages(ctx)
        if queued and isinstance(request_context.messages[-1], ModelRequest):
            await self._record_request(queued)  # queued by hooks just now: they join this request too
        await self._context.model_calls.enter(request_context.model.model_id)
        return request_context

    async def _record_request(self, messages: Sequence[ModelMessage]) -> None:
        if self._history.add_request(get_open_parts(messages)):
            await self._context.attempt.saver.save()

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
            await self._context.model_calls.on_error(exc)
        await self._context.model_calls.enter(request_context.model.model_id)
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
