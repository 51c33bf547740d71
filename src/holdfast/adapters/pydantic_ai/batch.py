"""The calls of one reply: announced together, made once, recorded one by one."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.exceptions import ToolFailed as ModelVisibleError
from pydantic_ai.messages import ModelRequest, ModelRequestPart, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.tool_manager import ToolManager

from holdfast.adapters.pydantic_ai.deferred import DeferredCalls, add_reason, dump_metadata
from holdfast.adapters.pydantic_ai.history import Counters
from holdfast.adapters.pydantic_ai.tool_results import (
    ToolResultBuilder,
    await_outcome,
    get_return_part,
    get_value,
    is_error,
)
from holdfast.adapters.pydantic_ai.toolset import OpenCall, get_policy
from holdfast.adapters.tool_policies import PURE, ToolPolicies
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import InvalidReply
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.call_retries import await_thread, retry_call
from holdfast.core.execution.calling.waits import WAITING
from holdfast.core.execution.step import StepContext
from holdfast.core.run.waiting import ApprovalRequest, Deferred

#: Exceptions by which a tool answers the model or waits for a person. Their cause may be a transient error.
_OUTCOMES = (ToolRetryError, ToolFailedError, ApprovalRequired, CallDeferred)


class ToolExecution(CallRequest):
    """A call of pydantic-ai's. Approvals are asked for before it is made."""

    def __init__(
        self,
        attempt: Attempt,
        call: OpenCall,
        part: ToolCallPart,
        *,
        own_tool: Tool | None,
        in_thread: bool,
        start: Callable[[], Coroutine[Any, Any, Any]],
        count_usage: Callable[[], None],
    ) -> None:
        """Make the call with `start`.

        Args:
            part: with the arguments that a person has approved, which may be others than the model's.
            own_tool: set for a holdfast tool.
            count_usage: called before the result is recorded, so that both are saved together.
        """
        super().__init__(
            call_id=call.call_id,
            tool=call.tool,
            arguments=part.args_as_dict(),
            effect=call.effect,
            reconcile=call.policy.reconcile,
            in_doubt=call.policy.in_doubt,
            in_thread=in_thread,
        )
        self._attempt, self._policy, self._start_tool, self._count_usage = attempt, call.policy, start, count_usage
        self._own_tool = own_tool
        self._results = ToolResultBuilder(call.tool, call.call_id, call.definition)
        #: Returns or raises the outcome to pydantic-ai. `None` if the call was not made in this process.
        self.outcome: Callable[[], Any] | None = None

    async def execute(self) -> ModelRequest | Deferred:
        if self._policy.retry is None:
            work = self._start()
        else:
            work = retry_call(
                self._attempt, self._policy.retry, self.tool, self.call_id, self._start, outcomes=_OUTCOMES
            )
        try:
            self.outcome, result = await await_outcome(self._keep_error(work), self._results)
        except CallDeferred as exc:
            metadata = dump_metadata(exc.metadata)
            return Deferred(reason=add_reason(ApprovalRequest(), metadata).reason, metadata=metadata)
        if isinstance(result, Deferred):
            return result
        if is_error(result) and self._attempt.stop_state.is_stopping and not self.in_thread:
            raise asyncio.CancelledError  # an exception from a call that the run cancelled is no result
        self._count_usage()
        return result

    async def _keep_error(self, work: Awaitable[Any]) -> Any:
        """Keep the error that becomes a result."""
        try:
            return await work
        except (ToolRetryError, ToolFailedError) as exc:
            self.error = exc.__cause__ or exc
            raise

    def _start(self) -> Awaitable[Any]:
        work = self._start_tool()
        # The thread of a holdfast tool is awaited within.
        if self.in_thread and self._own_tool is None:
            return await_thread(self._attempt, work)
        return work

    def error_result(self, text: str) -> ModelRequest:
        return self._results.make_error_result(text)

    def reconciled_result(self, value: Any) -> ModelRequest:
        return self._results.make_result(value)

    def replace_arguments(self, arguments: Any) -> Any:
        """Accept the arguments: pydantic-ai has validated them, and the call has them."""
        return None

    def is_error(self, result: Any) -> bool:
        return is_error(result)


async def invoke(handler: WrapToolExecuteHandler, args: dict[str, Any]) -> Any:
    """Call the tool. A sync one runs in the thread that its call has reserved."""
    threads = current_call().threads
    with AbstractAgent.using_thread_executor(threads) if threads is not None else nullcontext():
        return await handler(args)


def runs_in_thread(ctx: RunContext[Any], name: str) -> bool:
    """Whether the tool is a sync function, whose thread cannot be cancelled."""
    tool: Any = (ctx.tool_manager.tools or {}).get(name) if ctx.tool_manager is not None else None
    while (inner := getattr(tool, "source_tool", None)) is not None:  # as part of a combined toolset
        tool = inner
    return getattr(tool, "is_async", True) is False


class PydanticAIBatch:
    """Makes the calls of the open reply. One object serves a conversation, reply after reply."""

    def __init__(
        self,
        context: StepContext,
        counters: Counters,
        policies: ToolPolicies,
        final_results: Mapping[str, ModelRequest],
    ) -> None:
        """Begin with no reply.

        Args:
            final_results: results in the conversation, of a reply that an earlier process has answered.
        """
        self._context, self._counters, self._policies, self._final_results = (
            context,
            counters,
            policies,
            final_results,
        )
        self._calls: dict[str, OpenCall] = {}
        self.deferred = DeferredCalls(context)

    async def open(self, tools: ToolManager[Any], reply: ModelResponse, *, resumed: bool) -> None:
        """Announce the calls of `reply`. Once this returns they may be made."""
        self._calls = self.deferred.calls = self._collect_calls(tools, reply)
        unknown = [call.call_id for call in self._calls.values() if call.definition is None]
        if resumed:
            self._check_missing_tools(unknown)
        elif unknown:
            self._counters.unknown_calls = unknown
            self._counters.write_to(self._context.state)
        if self._calls:
            not_started = [call.call_id for call in self._calls.values() if self._is_not_started(call)]
            effects = {call.call_id: call.effect for call in self._calls.values()}
            await self._context.tool_calls.announce(effects, resumed=resumed, not_started=not_started)

    def _collect_calls(self, tools: ToolManager[Any], reply: ModelResponse) -> dict[str, OpenCall]:
        calls: dict[str, OpenCall] = {}
        parts = [(part, tools.get_tool_def(part.tool_name)) for part in reply.tool_calls]
        functions = [(part, tool) for part, tool in parts if tool is None or tool.kind != "output"]
        # With one call there is no other that it could wait for.
        several = len(functions) > 1
        one_by_one = several and tools.get_parallel_execution_mode() == "sequential"
        # Beside an output, the agent's settings decide which calls are made, and when.
        waits = len(functions) < len(parts)
        for part, definition in functions:
            if part.tool_call_id in calls:
                raise InvalidReply(f"two tool calls of one reply share the id {part.tool_call_id}")
            policy = PURE if definition is None else get_policy(self._policies, definition, self._context.profile.tools)
            alone = several and (one_by_one or tools.is_sequential(part))
            calls[part.tool_call_id] = OpenCall(part, definition, policy, waits or (alone and bool(calls)))
            waits = waits or alone
        return calls

    def _is_not_started(self, call: OpenCall) -> bool:
        waits = call.starts_later or self._context.waits.get(call.call_id) is not None
        return waits and call.call_id not in self._counters.started

    def _check_missing_tools(self, unknown: Sequence[str]) -> None:
        """Apply the agent's policy to a saved reply that asks for tools which a deploy has removed."""
        missing = [
            self._calls[call_id].part.tool_name
            for call_id in unknown
            if call_id not in self._counters.unknown_calls and call_id not in self._context.state.results
        ]
        self._context.refuse_removed_tools(missing)

    # -- making calls -------------------------------------------------------------------------------------------

    async def execute(
        self,
        ctx: RunContext[Any],
        part: ToolCallPart,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Return the recorded result of the call, or make it now."""
        call = self._calls.get(part.tool_call_id)
        if call is None:  # made by a tool, not by the reply: part of that tool's call
            return await handler(args)
        if call.call_id in self._final_results:
            return get_value(self._final_results[call.call_id])
        if call.call_id not in self._context.state.results:
            if not ctx.tool_call_approved:
                self._check_approval(call)
            if call.starts_later or ctx.tool_call_approved:
                await self._mark_started(call)
        return await self._execute_call(ctx, call, part, args, handler)

    def _check_approval(self, call: OpenCall) -> None:
        """Raise `ApprovalRequired` for a call that needs an approval: `DurableCapability` then looks for the answer."""
        wait = self._context.waits.get(call.call_id)
        if wait is None and call.call_id not in self._counters.started:
            if call.policy.request_approval(call.arguments) is None:
                return
            wait = self.deferred.add_approval(call)
        if wait is not None and (wait.kind == "approval" or (wait.kind == "child" and wait.approval is not None)):
            raise ApprovalRequired(wait.metadata)

    async def _execute_call(
        self,
        ctx: RunContext[Any],
        call: OpenCall,
        part: ToolCallPart,
        args: dict[str, Any],
        handler: WrapToolExecuteHandler,
    ) -> Any:
        own = self._context.profile.tools.get(call.tool)
        request = ToolExecution(
            self._context.attempt,
            call,
            part,
            own_tool=own,
            in_thread=runs_in_thread(ctx, call.tool) if own is None else own.in_thread,
            start=functools.partial(invoke, handler, args),
            count_usage=self.count_usage,
        )
        try:
            result = await self._context.tool_calls.try_execute(request)
        except ApprovalRequired as exc:
            if ctx.tool_call_approved:
                raise ModelVisibleError("The tool asks for an approval again, although the call was approved.") from exc
            self._record_approval(call, exc)
            raise
        except Exception as exc:
            self._context.attempt.stop_state.record_interruption(exc)
            raise
        if result is WAITING:
            raise CallDeferred  # pydantic-ai makes the other calls, and ends its run
        if request.outcome is not None:
            return request.outcome()
        if get_return_part(result).outcome == "retried" and ctx.tool_manager is not None:
            ctx.tool_manager.failed_tools.add(call.tool)
        return get_value(result)

    def _record_approval(self, call: OpenCall, error: ApprovalRequired) -> None:
        """Record that the tool wants an approval: the call counts as never started."""
        self.deferred.add_approval(call, error.metadata)
        state = self._counters
        state.started = [call_id for call_id in state.started if call_id != call.call_id]
        state.write_to(self._context.state)

    async def _mark_started(self, call: OpenCall) -> None:
        """Record that the call starts: it is in doubt until its result is recorded. Durable before it starts."""
        if call.call_id in self._counters.started:
            return
        self._counters.started.append(call.call_id)
        self._counters.write_to(self._context.state)
        if call.effect is Effect.ONCE:
            await self._context.attempt.saver.save(must_succeed=True)

    def count_usage(self) -> None:
        """Add pydantic-ai's usage since the last count to the run's."""
        used = self._counters.take_usage()
        if used is not None:
            self._context.add_usage(used)
            self._counters.write_to(self._context.state)

    # -- all answered -------------------------------------------------------------------------------------------

    def close(self, parts: Sequence[ModelRequestPart]) -> list[ModelRequest]:
        """Return the messages that answer the reply: recorded results, and other parts from pydantic-ai."""
        recorded = {call_id: self._context.state.results.get(call_id) for call_id in self._calls}
        said = [part.content for result in recorded.values() if result for part in _find_user_prompts(result)]
        messages: list[ModelRequest] = []
        loose: list[ModelRequestPart] = []
        for part in parts:
            result = recorded.get(getattr(part, "tool_call_id", ""))
            if result is None:
                if isinstance(part, UserPromptPart) and part.content in said:
                    said.remove(part.content)  # it is in a result already
                else:
                    loose.append(part)
            elif not any(result is message for message in messages):
                messages.extend(_make_requests(loose))
                messages.append(result)
                loose = []
        self._calls = self.deferred.calls = {}
        self._counters.end_batch()
        return [*messages, *_make_requests(loose)]


def _find_user_prompts(result: ModelRequest) -> list[UserPromptPart]:
    return [part for part in result.parts if isinstance(part, UserPromptPart)]


def _make_requests(parts: list[ModelRequestPart]) -> list[ModelRequest]:
    return [ModelRequest(parts=parts)] if parts else []
