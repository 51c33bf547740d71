"""One call of a tool, as `StepContext` makes it: through pydantic-ai's handler, with the outcome that both need."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities.abstract import WrapToolExecuteHandler
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailedError, ToolRetryError
from pydantic_ai.messages import ModelRequest, ToolCallPart

from holdfast.adapters.pydantic_ai.deferred import add_reason, dump_metadata
from holdfast.adapters.pydantic_ai.results import ToolResultBuilder, await_outcome, is_error
from holdfast.adapters.pydantic_ai.tools import OpenCall
from holdfast.core.approval import ApprovalRequest
from holdfast.core.execution.attempts import retry_call
from holdfast.core.execution.run import RunExecution
from holdfast.core.tool import Tool
from holdfast.core.tool_context import current_call
from holdfast.core.waiting import Deferred

#: Exceptions by which a tool answers the model or waits for a person. Their cause may be a transient error.
_OUTCOMES = (ToolRetryError, ToolFailedError, ApprovalRequired, CallDeferred)


class ToolExecution:
    """An `ExecutableCall` of pydantic-ai's. Approvals are asked for before it is made."""

    def __init__(
        self,
        run: RunExecution,
        call: OpenCall,
        part: ToolCallPart,
        *,
        own_tool: Tool | None,
        in_thread: bool,
        attempt: Callable[[], Coroutine[Any, Any, Any]],
        count_usage: Callable[[], None],
    ) -> None:
        """Make the call with `attempt`.

        Args:
            part: with the arguments that a person has approved, which may be others than the model's.
            own_tool: set for a holdfast tool.
            count_usage: called before the result is recorded, so that both are saved together.
        """
        self._run, self._policy, self._attempt, self._count_usage = run, call.policy, attempt, count_usage
        self._own_tool = own_tool
        self.call_id, self.tool, self.effect = call.call_id, call.tool, call.effect
        self.arguments = part.args_as_dict()
        self.reconcile, self.in_doubt = call.policy.reconcile, call.policy.in_doubt
        self.in_thread = in_thread
        self.approval: ApprovalRequest | None = None
        self._results = ToolResultBuilder(call.tool, call.call_id, call.definition)
        self.error_result, self.reconciled_result = self._results.make_error_result, self._results.make_result
        #: Returns or raises the outcome to pydantic-ai. `None` if the call was not made in this process.
        self.outcome: Callable[[], Any] | None = None

    async def execute(self) -> ModelRequest | Deferred:
        if self._policy.retry is None:
            work = self._start()
        else:
            work = retry_call(self._run, self._policy.retry, self.tool, self.call_id, self._start, outcomes=_OUTCOMES)
        try:
            self.outcome, result = await await_outcome(work, self._results)
        except CallDeferred as exc:
            metadata = dump_metadata(exc.metadata)
            return Deferred(reason=add_reason(ApprovalRequest(), metadata).reason, metadata=metadata)
        if isinstance(result, Deferred):
            return result
        if is_error(result) and self._run.is_stopping and not self.in_thread:
            raise asyncio.CancelledError  # an exception from a call that the run cancelled is no result
        self._count_usage()
        return result

    def _start(self) -> Awaitable[Any]:
        work = self._attempt()
        # The thread of a holdfast tool is awaited within.
        if self.in_thread and self._own_tool is None:
            return self._run.await_uninterruptible(work)
        return work

    def replace_arguments(self, arguments: Any) -> Any:
        """Accept the arguments: pydantic-ai has validated them, and `attempt` has them."""
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
