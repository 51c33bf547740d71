"""The turns of a run, one after the other: ask the model, answer its calls, repeat; each journalled and a step."""

from typing import Any

from pydantic_ai import AgentRun, CallToolsNode, DeferredToolRequests, ModelRequestNode
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_graph import End

from holdfast.adapters.pydantic_ai.batch import Batch
from holdfast.adapters.pydantic_ai.conversation import Conversation, open_parts, steering
from holdfast.adapters.pydantic_ai.notes import Notes
from holdfast.run.drive import Drive
from holdfast.run.errors import RunParked


class Turns:
    """Takes one run of pydantic-ai from node to node."""

    def __init__(
        self, drive: Drive, run: AgentRun[Any, Any], conversation: Conversation, batch: Batch, notes: Notes
    ) -> None:
        """Take up `run`. What was counted in earlier lives goes on counting."""
        self._drive, self._run, self._conversation, self._batch, self._notes = drive, run, conversation, batch, notes
        # Looking them up in the run is dear.
        self._state, self._deps = run.ctx.state, run.ctx.deps
        self._state.output_retries_used = notes.output_retries
        self._deps.prompt = drive.prompt
        #: The reply with which the saved conversation ends: an earlier life was about to answer it.
        self._resumed: ModelResponse | None = None
        #: Why the run cannot go on now, if it has ended with calls that wait for an answer.
        self.parked: RunParked | None = None

    async def take(self) -> Any:
        """All turns, to the run's output; or until it is `parked`."""
        node = await self._begin(self._run.next_node) if self._run.result is None else None
        while node is not None and not isinstance(node, End):
            if isinstance(node, ModelRequestNode):
                node = await self._ask(node)
            elif isinstance(node, CallToolsNode):
                node = await self._answer(node)
            else:
                node = await self._run.next(node)
        assert self._run.result is not None, "a run that has ended has a result"
        return self._run.result.output

    async def _begin(self, node: Any) -> Any:
        following = await self._run.next(node)
        messages = self._state.message_history
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

    async def _ask(self, node: ModelRequestNode[Any, Any]) -> Any:
        steered = await self._drive.begin_step(lambda: self._prepare(node))
        if steered:
            node.request.parts = [*node.request.parts, *steering(steered)]
            self._conversation.ask(node.request.parts[-len(steered) :])
        following = await self._run.next(node)
        await self._take_reply(following)
        return following

    async def _prepare(self, node: ModelRequestNode[Any, Any]) -> None:
        """Put what is about to be asked into the history, and make that shorter if it is time to."""
        if node.is_resuming_without_prompt:
            self._conversation.know(node.request.parts)  # some may have been made anew, such as dynamic prompts
        else:
            self._conversation.ask(node.request.parts)
        shorter = await self._conversation.compacted()
        if shorter is not None:
            self._state.message_history[:], node.request = shorter

    async def _take_reply(self, following: Any) -> None:
        last = self._state.message_history[-1]
        reply = following.model_response if isinstance(following, CallToolsNode) else last
        self._batch.count_usage()
        if isinstance(reply, ModelResponse):
            self._conversation.replied(reply)
            await self._drive.said(reply.text or "")
        if isinstance(following, ModelRequestNode):  # a hook of the agent's refused the reply
            self._conversation.ask(following.request.parts)
            await self._end_step()

    async def _answer(self, node: CallToolsNode[Any, Any]) -> Any:
        reply, resumed = node.model_response, self._resumed is node.model_response
        self._resumed = None
        self._notes.restore_tool_retries(self._deps.tool_manager)
        await self._batch.open(self._deps.tool_manager, reply, resumed=resumed)
        following: Any = await self._run.next(node)
        over = isinstance(following, End)
        if over and isinstance(following.data.output, DeferredToolRequests):
            self.parked = self._batch.defer(following.data.output)
            return following
        parts = [*open_parts(self._state.message_history), *(() if over else following.request.parts)]
        known = resumed and over and (self._conversation.is_over or not reply.tool_calls)
        self._conversation.answered(self._batch.close(parts), parts, final=over)
        if not known:
            await self._end_step()
        if over and self._drive.has_steering:
            return ModelRequestNode(ModelRequest(parts=[]))
        return following

    async def _end_step(self) -> None:
        self._notes.take_retries(self._deps.tool_manager, self._state.output_retries_used)
        self._notes.keep(self._drive.state)
        await self._drive.end_step()
