"""Runs the graph of pydantic-ai node by node: each model reply and its tool calls are one step."""

import functools
from typing import Any

from pydantic_ai import AgentRun, CallToolsNode, DeferredToolRequests, ModelRequestNode
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_graph import End

from holdfast.adapters.pydantic_ai.batch import Batch
from holdfast.adapters.pydantic_ai.codec import load_prompt
from holdfast.adapters.pydantic_ai.state import AdapterState
from holdfast.adapters.pydantic_ai.transcript import Transcript, get_open_parts, make_steering_parts
from holdfast.core.errors import RunParked
from holdfast.core.execution.steps import StepContext


class GraphRunner:
    """Runs one agent run of pydantic-ai from node to node."""

    def __init__(
        self,
        context: StepContext,
        run: AgentRun[Any, Any],
        transcript: Transcript,
        batch: Batch,
        adapter_state: AdapterState,
    ) -> None:
        """Attach to `run`, with the counters of earlier attempts."""
        self._context, self._run, self._transcript, self._batch, self._adapter_state = (
            context,
            run,
            transcript,
            batch,
            adapter_state,
        )
        self._state, self._deps = run.ctx.state, run.ctx.deps
        self._state.output_retries_used = adapter_state.output_retries
        self._deps.prompt = load_prompt(context.prompt) if context.prompt else transcript.find_prompt()
        #: The unanswered reply that ends the saved conversation.
        self._resumed_reply: ModelResponse | None = None
        #: The error of a request to the model.
        self.request_error: Exception | None = None
        #: Set if the run ended with deferred calls.
        self.park_error: RunParked | None = None

    async def run(self) -> Any:
        """Run all nodes and return the output; `park_error` is set if calls were deferred."""
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
        if not self._transcript.has_started:
            assert isinstance(following, ModelRequestNode), "a prompt makes a request"
            await self._transcript.start(messages, following.request)
        elif self._transcript.ends_with_reply:
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
            self._transcript.add_request(node.request.parts[-len(steered) :])
        try:
            following = await self._run.next(node)
        except Exception as exc:
            self.request_error = exc
            raise
        self._context.model_retries.on_reply()
        await self._record_reply(following)
        return following

    async def _prepare_request(self, node: ModelRequestNode[Any, Any]) -> None:
        """Record the request in the history, and compact the history if the agent says so."""
        if node.is_resuming_without_prompt:
            self._transcript.mark_recorded(node.request.parts)  # some are new objects, such as dynamic prompts
        else:
            self._transcript.add_request(node.request.parts)
        shorter = await self._transcript.compact()
        if shorter is not None:
            self._state.message_history[:], node.request = shorter

    async def _record_reply(self, following: Any) -> None:
        last = self._state.message_history[-1]
        reply = following.model_response if isinstance(following, CallToolsNode) else last
        self._batch.count_usage()
        if isinstance(reply, ModelResponse):
            self._transcript.add_reply(reply)
            await self._context.emit_reply(reply.text or "")
        if isinstance(following, ModelRequestNode):  # a hook of the agent refused the reply
            self._transcript.add_request(following.request.parts)
            await self._end_step()

    async def _execute_calls(self, node: CallToolsNode[Any, Any]) -> Any:
        reply, resumed = node.model_response, self._resumed_reply is node.model_response
        self._resumed_reply = None
        self._adapter_state.restore_tool_retries(self._deps.tool_manager)
        await self._batch.open(self._deps.tool_manager, reply, resumed=resumed)
        following: Any = await self._run.next(node)
        over = isinstance(following, End)
        if over and isinstance(following.data.output, DeferredToolRequests):
            self.park_error = self._batch.park_deferred(following.data.output)
            return following
        parts = [*get_open_parts(self._state.message_history), *(() if over else following.request.parts)]
        known = resumed and over and (self._transcript.has_output or not reply.tool_calls)
        self._transcript.add_results(self._batch.close(parts), parts, final=over)
        if not known:
            await self._end_step()
        if over and self._context.has_messages:
            return ModelRequestNode(ModelRequest(parts=[]))
        return following

    async def _end_step(self) -> None:
        self._adapter_state.record_retries(self._deps.tool_manager, self._state.output_retries_used)
        self._adapter_state.write_to(self._context.state)
        await self._context.end_step()
