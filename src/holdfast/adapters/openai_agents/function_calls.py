"""One call of a function tool or a handoff, in the form that `StepContext` executes."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from agents import Agent, FunctionTool, Handoff, RunContextWrapper
from agents._public_agent import get_public_agent
from agents.tool import invoke_function_tool, maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from holdfast.adapters.openai_agents.message_codec import ToolOutput, make_output, parse_arguments
from holdfast.adapters.openai_agents.suspended_agents import SuspendedAgents
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.agents.tool import Tool, ToolPolicy
from holdfast.core.errors import ToolFailed, format_error
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.call_retries import await_thread, call_tool, retry_call
from holdfast.core.execution.calling.waits import WAITING
from holdfast.core.json_value import to_json_value
from holdfast.core.run.messages import UNREADABLE_ARGUMENTS
from holdfast.core.run.waiting import Deferred, Suspend

#: A tool made by `function_tool` turns its exceptions into text for the model, as its failure function says.
_DECORATED = "__agents_bind_function_tool__"
#: Set on the invoker of a sync function, which the SDK runs in a thread.
_SYNC = "__agents_sync_function_tool__"


class SDKCall(CallRequest):
    """A call that a reply asks for. Without a tool it cannot be made."""

    def __init__(self, item: ResponseFunctionToolCall, policy: ToolPolicy) -> None:
        # Never in a thread of ours: the SDK has threads of its own.
        super().__init__(
            call_id=item.call_id,
            tool=item.name,
            arguments=parse_arguments(item.arguments),
            effect=policy.effect,
            reconcile=policy.reconcile,
            in_doubt=policy.in_doubt,
        )
        #: What the model reads if a person has denied the call, in place of the usual text.
        self.denial: str | None = None

    async def execute(self) -> Any:
        return self.error_result(f"There is no tool {self.tool!r}.")

    def error_result(self, text: str) -> ToolOutput:
        return ToolOutput(call_id=self.call_id, tool=self.tool, value=self.denial or text, error=True)

    def reconciled_result(self, value: Any) -> ToolOutput:
        return make_output(self.call_id, self.tool, value)

    @property
    def is_unreadable(self) -> bool:
        """Whether no store can keep the arguments that the model gave. Then the call is not made."""
        return isinstance(self.arguments, dict) and UNREADABLE_ARGUMENTS in self.arguments

    def is_error(self, result: Any) -> bool:
        return isinstance(result, ToolOutput) and result.error


class FunctionCall(SDKCall):
    """A call of a function tool."""

    def __init__(
        self,
        item: ResponseFunctionToolCall,
        tool: FunctionTool,
        policy: ToolPolicy,
        attempt: Attempt,
        count_usage: Callable[[], None],
        agents: SuspendedAgents,
    ) -> None:
        """Make a call.

        Args:
            count_usage: counts what agents within the tool have used, together with its result.
            agents: has the state of the agent within the tool, if it waits.
        """
        super().__init__(item, policy)
        self._tool, self._policy, self._attempt, self._count_usage = tool, policy, attempt, count_usage
        self._agents = agents
        if self.is_unreadable:
            self.effect = Effect.PURE  # the tool is not called
        elif isinstance(self.arguments, dict):
            self.approval = policy.request_approval(self.arguments)
        self._input = item.arguments
        #: Set by the SDK's invocation of the tool.
        self._context: ToolContext[Any] | None = None
        #: What the tool returned in this process, before it was recorded.
        self.returned: Any = None

    def bind(self, context: ToolContext[Any], arguments: str) -> None:
        """Set what the SDK invokes the tool with. The tool sees the agent that its author made."""
        if context.agent is not None:
            context.agent = get_public_agent(context.agent)
        self._context, self._input = context, arguments

    @property
    def schema(self) -> dict[str, Any]:
        return self._tool.params_json_schema

    def replace_arguments(self, arguments: Any) -> Any:
        self.arguments = to_json_value(arguments, "the approved arguments")
        self._input = msgspec.json.encode(self.arguments).decode()
        if self._context is not None:
            self._context.tool_arguments = self._input
        return None

    def reconciled_result(self, value: Any) -> ToolOutput:
        return make_output(self.call_id, self.tool, value, typed=self._tool.output_json_schema is not None)

    async def execute(self) -> Any:
        policy = self._policy
        if self.is_unreadable:
            reason = self.arguments[UNREADABLE_ARGUMENTS]
            return self.error_result(f"The arguments cannot be read: {reason}. The tool was not called.")
        assert self._context is not None, "the SDK invokes a tool with a context"
        if self._agents.is_waiting(self.call_id):
            return WAITING
        await self._agents.resume(self.call_id, self._context, self._tool._agent_instance)
        try:
            work = (
                self._start()
                if policy.retry is None
                else retry_call(self._attempt, policy.retry, self.tool, self.call_id, self._start)
            )
            returned = await work
        except Exception as exc:  # user code may raise anything
            return await self._handle_error(exc)
        finally:
            self._count_usage()
        if isinstance(returned, Deferred):
            return returned
        if self._agents.suspend(self.call_id, self._context):
            return WAITING
        self.returned = returned
        return self.reconciled_result(returned)

    def _start(self) -> Awaitable[Any]:
        assert self._context is not None, "the SDK invokes a tool with a context"
        invocation = invoke_function_tool(
            function_tool=_let_errors_pass(self._tool), context=self._context, arguments=self._input
        )
        # The thread of a sync function cannot be cancelled.
        return await_thread(self._attempt, invocation) if self._is_sync else invocation

    async def _handle_error(self, error: Exception) -> ToolOutput:
        """Return the text that the model gets for an error of the tool, or raise the error if it ends the run."""
        stop = self._attempt.stop_state
        if (
            isinstance(error, Suspend)
            or stop.is_resumable_after(error)
            or not hasattr(self._tool.on_invoke_tool, _DECORATED)
        ):
            raise error
        assert self._context is not None
        text = await maybe_invoke_function_tool_failure_error_function(
            function_tool=self._tool, context=self._context, error=error
        )
        if text is None:  # its author wants errors to end the run
            raise error
        if stop.is_stopping and not self._is_sync:
            raise asyncio.CancelledError  # an exception from a call that the run cancelled is no result
        self.error = error
        return self.error_result(text)

    @property
    def _is_sync(self) -> bool:
        return bool(getattr(self._tool.on_invoke_tool, _SYNC, False))


def _let_errors_pass(tool: FunctionTool) -> FunctionTool:
    """Return the tool without its failure function: the errors of holdfast and transient ones have to be seen."""
    bare = copy.copy(tool)
    bare._failure_error_function, bare._use_default_failure_error_function = None, False
    return bare


class HoldfastCall(SDKCall):
    """A call of a tool of holdfast, such as another agent or a skill."""

    def __init__(self, item: ResponseFunctionToolCall, tool: Tool, attempt: Attempt) -> None:
        super().__init__(item, tool.policy)
        self._tool, self._attempt, self.in_thread = tool, attempt, tool.in_thread
        try:
            self.approval = tool.policy.request_approval(tool.check(self.arguments))
        except ValueError:
            self.effect = Effect.PURE  # the arguments do not fit: the tool is not called

    @property
    def schema(self) -> dict[str, Any]:
        return self._tool.schema.parameters

    def replace_arguments(self, arguments: Any) -> Any:
        self.arguments = arguments
        return None

    async def execute(self) -> Any:
        tool, stop = self._tool, self._attempt.stop_state
        try:
            tool.check(self.arguments)
        except ValueError as exc:
            return self.error_result(f"The arguments do not fit: {exc}. The tool was not called.")
        try:
            # Checked again for each try: the tool may have changed the arguments of an earlier one.
            returned = await call_tool(self._attempt, tool, self.call_id, lambda: tool.call(tool.check(self.arguments)))
        except Exception as exc:  # user code may raise anything
            if isinstance(exc, Suspend) or stop.is_resumable_after(exc):
                raise
            if stop.is_stopping and not tool.in_thread:
                raise asyncio.CancelledError from exc
            self.error = exc
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            return self.error_result(format_error(exc))
        return returned if isinstance(returned, Deferred) else self.reconciled_result(returned)


class HandoffCall(SDKCall):
    """A handoff to another agent. Its result is the text that the SDK gives to the model for it."""

    def __init__(self, item: ResponseFunctionToolCall, handoff: Handoff[Any, Any], policy: ToolPolicy) -> None:
        super().__init__(item, policy)
        self._handoff, self._input = handoff, item.arguments
        self._context: RunContextWrapper[Any] | None = None
        #: The agent, if the handoff was made in this process.
        self.target: Agent[Any] | None = None

    def bind(self, context: RunContextWrapper[Any], arguments: str) -> None:
        """Set what the SDK invokes the handoff with."""
        self._context, self._input = context, arguments

    async def execute(self) -> Any:
        assert self._context is not None, "the SDK invokes a handoff with a context"
        self.target = await self._handoff.on_invoke_handoff(self._context, self._input)
        return self.reconciled_result(self._handoff.get_transfer_message(self.target))

    def get_target(self, output: ToolOutput) -> Agent[Any] | str:
        """Return the agent that the handoff leads to, or its name if the handoff was made in another process.

        If its outcome is unknown, `on_handoff` is not called again: the conversation is with the other agent now.
        """
        if self.target is not None:
            return self.target
        recorded = None if output.error else parse_arguments(str(output.value))
        return str(recorded["assistant"]) if isinstance(recorded, dict) else self._handoff.agent_name
