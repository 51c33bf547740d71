"""What joins a run of pydantic-ai with a run of holdfast: a capability, which pydantic-ai calls at every turn."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import (
    AgentRun,
    CallToolsNode,
    DeferredToolRequests,
    DeferredToolResults,
    ModelRequestNode,
    RunContext,
    UserPromptNode,
)
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering, on_event
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.messages import (
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RunUsage
from pydantic_graph import End

from holdfast.adapters.pydantic_ai.batch import Batch
from holdfast.adapters.pydantic_ai.conversation import Conversation, open_parts, steering
from holdfast.adapters.pydantic_ai.notes import Notes
from holdfast.adapters.pydantic_ai.policy import ToolPolicies
from holdfast.run.drive import Drive
from holdfast.run.errors import RunParked
from holdfast.run.ports import RunEvent

Advance = Callable[[Any], Awaitable[Any]]


class Journal(AbstractCapability[Any]):
    """Journals one run of an agent and makes its tool calls through the drive."""

    def __init__(self, drive: Drive, policies: ToolPolicies) -> None:
        self._drive = drive
        self._conversation = Conversation(drive)
        self._notes = Notes(drive.state)
        if not self._conversation.has_begun:
            self._notes.new_conversation()
        self._batch = Batch(drive, self._notes, policies, self._conversation.final_results())
        #: The reply with which the saved conversation ends: an earlier life was about to answer it.
        self._resumed: ModelResponse | None = None
        self._run: AgentRun[Any, Any] | None = None
        #: Why the run cannot go on now, if it ended with calls that wait for an answer.
        self.parked: RunParked | None = None

    @property
    def conversation(self) -> Conversation:
        return self._conversation

    @property
    def usage(self) -> RunUsage:
        return self._notes.usage

    def bind(self, run: AgentRun[Any, Any]) -> None:
        """This is the run. What was counted before goes on counting."""
        self._run = run
        run.ctx.state.output_retries_used = self._notes.output_retries
        run.ctx.deps.prompt = self._drive.prompt

    @property
    def _bound(self) -> AgentRun[Any, Any]:
        assert self._run is not None, "the loop binds the run before it advances it"
        return self._run

    def count_usage(self) -> None:
        """Bring the run's usage up to pydantic-ai's: also what a request has cost that failed in the end."""
        self._batch.count_usage()

    # -- pydantic-ai's hooks ------------------------------------------------------------------------------------

    def get_ordering(self) -> CapabilityOrdering:
        # Outside of the agent's own capabilities: what they made of a result is what is recorded, and a recorded
        # result does not go through them again.
        return CapabilityOrdering(position="outermost")

    async def wrap_node_run(self, ctx: RunContext[Any], *, node: Any, handler: Advance) -> Any:
        if isinstance(node, ModelRequestNode):
            return await self._ask(node, handler)
        if isinstance(node, CallToolsNode):
            return await self._answer(ctx, node, handler)
        if isinstance(node, UserPromptNode):
            return await self._begin(node, handler)
        return await handler(node)

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        # What tools and hooks have put into the queue joins the request only now.
        if self._conversation.ask(open_parts(request_context.messages)):
            await self._drive.live.save()
        self._restore_tool_retries()
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

    # -- the turns of a run -------------------------------------------------------------------------------------

    async def _begin(self, node: Any, advance: Advance) -> Any:
        following = await advance(node)
        messages = self._bound.all_messages()
        if not self._conversation.has_begun:
            assert isinstance(following, ModelRequestNode), "a prompt makes a request"
            await self._conversation.begin(messages, following.request)
        elif self._conversation.ends_with_reply:
            if not isinstance(following, CallToolsNode):
                reply = messages[-1]
                assert isinstance(reply, ModelResponse)
                # Without calls, an agent with instructions would ask the model once more.
                following = CallToolsNode(reply)
            self._resumed = following.model_response
        return following

    async def _ask(self, node: ModelRequestNode[Any, Any], advance: Advance) -> Any:
        steered = await self._drive.begin_step()
        if node.is_resuming_without_prompt:
            self._conversation.know(node.request.parts)  # some may have been made anew, such as dynamic prompts
        else:
            self._conversation.ask(node.request.parts)
        shorter = await self._conversation.compacted()
        if shorter is not None:
            self._bound.ctx.state.message_history[:], node.request = shorter
        if steered:
            node.request.parts = [*node.request.parts, *steering(steered)]
            self._conversation.ask(node.request.parts[-len(steered) :])
        following = await advance(node)
        await self._take_reply(following)
        return following

    async def _take_reply(self, following: Any) -> None:
        last = self._bound.all_messages()[-1]
        reply = following.model_response if isinstance(following, CallToolsNode) else last
        self._batch.count_usage()
        if isinstance(reply, ModelResponse):
            self._conversation.replied(reply)
            await self._drive.said(reply.text or "")
        if isinstance(following, ModelRequestNode):  # a hook of the agent's refused the reply
            self._conversation.ask(following.request.parts)
            await self._end_step()

    async def _answer(self, ctx: RunContext[Any], node: CallToolsNode[Any, Any], advance: Advance) -> Any:
        reply, resumed = node.model_response, self._resumed is node.model_response
        self._resumed = None
        self._restore_tool_retries()
        await self._batch.open(ctx, reply, resumed=resumed)
        following = await advance(node)
        over = isinstance(following, End)
        if over and isinstance(following.data.output, DeferredToolRequests):
            self.parked = self._batch.defer(following.data.output)
            return following
        parts: list[ModelRequestPart] = (
            open_parts(self._bound.all_messages()) if over else list(following.request.parts)
        )
        known = resumed and over and (self._conversation.is_over or not reply.tool_calls)
        self._conversation.answered(self._batch.close(parts), parts, final=over)
        if not known:
            await self._end_step()
        if over and self._drive.has_steering:
            return ModelRequestNode(ModelRequest(parts=[]))
        return following

    async def _end_step(self) -> None:
        graph = self._bound.ctx
        manager, notes = graph.deps.tool_manager, self._notes
        before = manager.ctx.retries if manager.ctx is not None else {}
        notes.tool_retries = {tool: count for tool, count in before.items() if tool not in manager.succeeded_tools}
        notes.tool_retries.update((tool, before.get(tool, 0) + 1) for tool in manager.failed_tools)
        notes.output_retries = graph.state.output_retries_used
        notes.keep(self._drive.state)
        await self._drive.end_step()

    def _restore_tool_retries(self) -> None:
        """Once: from then on pydantic-ai carries them on by itself."""
        manager = self._bound.ctx.deps.tool_manager
        if self._notes.tool_retries and manager.ctx is not None and not manager.ctx.retries:
            manager.ctx.retries.update(self._notes.tool_retries)


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
