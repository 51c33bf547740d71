"""The calls of one reply: announced together, made once, recorded one by one."""

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import Agent, FunctionTool, Handoff, RunContextWrapper, Tool, ToolApprovalItem
from agents.run_config import ToolErrorFormatter, ToolErrorFormatterArgs
from agents.tool import DEFAULT_APPROVAL_REJECTION_MESSAGE
from agents.tool_context import ToolContext
from agents.util._approvals import evaluate_function_tool_approval
from openai.types.responses import ResponseFunctionToolCall

from holdfast.adapters.openai_agents.function_calls import FunctionCall, HandoffCall, HoldfastCall, SDKCall
from holdfast.adapters.openai_agents.message_codec import SDKReply, ToolOutput
from holdfast.adapters.openai_agents.suspended_agents import SuspendedAgents
from holdfast.adapters.tool_policies import ONCE, PURE, ToolPolicies, find_policy
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool as HoldfastTool
from holdfast.core.agents.tool import ToolPolicy
from holdfast.core.errors import DefinitionError, InvalidReply
from holdfast.core.execution.calling.waits import WAITING
from holdfast.core.execution.step import StepContext
from holdfast.core.run.messages import Usage
from holdfast.core.run.waiting import ApprovalRequest


class _Recorded:
    """Invokes a tool or a handoff through a batch."""

    def __init__(self, original: Any, invoke: Callable[[Any, str], Awaitable[Any]], policy: ToolPolicy = ONCE) -> None:
        self.original, self._invoke, self.policy = original, invoke, policy

    def __call__(self, context: Any, arguments: str) -> Awaitable[Any]:
        return self._invoke(context, arguments)


class Toolkit:
    """The tools and handoffs of an agent in one turn, as their author made them."""

    def __init__(self, tools: Sequence[Tool], handoffs: Sequence[Handoff[Any, Any]]) -> None:
        self.functions: dict[str, FunctionTool | HoldfastTool] = {
            tool.name: _get_original(tool, tool.on_invoke_tool) for tool in tools if isinstance(tool, FunctionTool)
        }
        self.handoffs: dict[str, Handoff[Any, Any]] = {each.tool_name: each for each in handoffs}

    def __contains__(self, name: str) -> bool:
        return name in self.functions or name in self.handoffs


def _get_original(wrapped: Any, invoker: Any) -> Any:
    return invoker.original if isinstance(invoker, _Recorded) else wrapped


def get_original_tool(tool: FunctionTool) -> FunctionTool:
    """Return the tool as its author made it. One of holdfast is a function tool only here."""
    original = _get_original(tool, tool.on_invoke_tool)
    return original if isinstance(original, FunctionTool) else tool


class SDKBatch:
    """Makes the calls of the open reply. One object serves a conversation, reply after reply."""

    def __init__(
        self,
        context: StepContext,
        policies: ToolPolicies,
        sdk_context: RunContextWrapper[Any],
        error_formatter: ToolErrorFormatter | None,
    ) -> None:
        self._context, self._policies, self._sdk_context = context, policies, sdk_context
        self._error_formatter = error_formatter
        self._suspended = SuspendedAgents(context)
        self._calls: dict[str, SDKCall] = {}
        #: Results of a reply that an earlier process has answered, by call id.
        self._final_outputs: dict[str, ToolOutput] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waits = False
        #: The error of a call that interrupts the run, which the SDK wraps in one of its own.
        self.error: Exception | None = None

    async def prepare(self, items: Sequence[ResponseFunctionToolCall], kit: Toolkit) -> None:
        """Find the calls of a new reply that a person has to approve, as the tools say. Records nothing."""
        self._calls = self._make_calls(items, kit)
        for item in items:
            tool = kit.functions.get(item.name)
            if not isinstance(tool, FunctionTool) or tool.needs_approval is False:
                continue
            if self._calls[item.call_id].is_unreadable:
                continue
            asked = await evaluate_function_tool_approval(tool, self._sdk_context, item.arguments, item.call_id)
            call = self._calls[item.call_id]
            if asked.outcome == "require_approval":
                call.approval = call.approval or ApprovalRequest()

    async def open(self) -> None:
        """Announce the calls that were prepared. Their reply is in the history. Once this returns they may be made."""
        if self._calls:
            self._context.tool_calls.add_approvals(self._calls.values())
            await self._context.tool_calls.announce(self._get_effects())

    async def resume(
        self, reply: SDKReply, items: Sequence[ResponseFunctionToolCall], kit: Toolkit, agent: Agent[Any]
    ) -> None:
        """Announce the calls of a reply that an earlier process has recorded."""
        self._calls = self._make_calls(items, kit)
        self._check_missing_tools(reply, kit)
        for item in items:
            call, wait = self._calls[item.call_id], self._context.waits.get(item.call_id)
            if wait is not None and wait.kind == "approval":
                call.approval = call.approval or ApprovalRequest()
                if not isinstance(call.arguments, dict) and not self._is_undecided(call.call_id):
                    # The SDK itself asks for an approval of arguments that it cannot parse.
                    self._sdk_context.approve_tool(ToolApprovalItem(agent=agent, raw_item=item, tool_name=item.name))
        if self._calls:
            await self._context.tool_calls.announce(
                self._get_effects(), resumed=True, not_started=self._suspended.call_ids
            )

    def reopen(self, final_outputs: dict[str, ToolOutput]) -> None:
        """Return these results: an earlier process has made all calls of the reply."""
        self._final_outputs = final_outputs

    def _get_effects(self) -> dict[str, Effect]:
        return {call.call_id: call.effect for call in self._calls.values()}

    def _make_calls(self, items: Sequence[ResponseFunctionToolCall], kit: Toolkit) -> dict[str, SDKCall]:
        calls: dict[str, SDKCall] = {}
        for item in items:
            if item.call_id in calls:
                raise InvalidReply(f"two tool calls of one reply share the id {item.call_id}")
            calls[item.call_id] = self._make_call(item, kit.functions.get(item.name), kit.handoffs.get(item.name))
        return calls

    def _make_call(
        self,
        item: ResponseFunctionToolCall,
        tool: FunctionTool | HoldfastTool | None,
        handoff: Handoff[Any, Any] | None,
    ) -> SDKCall:
        if isinstance(tool, HoldfastTool):
            return HoldfastCall(item, tool, self._context.attempt)
        if tool is not None:
            policy = find_policy(self._policies, tool.name, tool)
            return FunctionCall(item, tool, policy, self._context.attempt, self._count_nested_usage, self._suspended)
        if handoff is not None:
            made = handoff.on_invoke_handoff
            assert isinstance(made, _Recorded), "the handoffs of executed agents are wrapped"
            return HandoffCall(
                item, made.original, find_policy(self._policies, handoff.tool_name, None, default=made.policy)
            )
        return SDKCall(item, PURE)

    def _count_nested_usage(self) -> None:
        """Count what agents within tools have used. The SDK adds it to the usage in the context of the run."""
        total, counted = self._sdk_context.usage, self._context.state.own_usage
        nested = Usage(
            requests=total.requests - counted.requests,
            input_tokens=total.input_tokens - counted.input_tokens,
            output_tokens=total.output_tokens - counted.output_tokens,
            reasoning_tokens=total.output_tokens_details.reasoning_tokens - counted.reasoning_tokens,
        )
        if nested.requests > 0:
            self._context.add_usage(nested)

    def _check_missing_tools(self, reply: SDKReply, kit: Toolkit) -> None:
        """Apply the agent's policy to a saved reply that asks for tools which a deploy has removed."""
        done = {*reply.unknown, *self._context.state.results}
        missing = [call.tool for call in self._calls.values() if call.tool not in kit and call.call_id not in done]
        self._context.refuse_removed_tools(missing)

    # -- approvals ----------------------------------------------------------------------------------------------

    async def needs_approval(self, context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        """Whether the call still waits for its approval: the `needs_approval` of tools that have one."""
        call = self._calls.get(call_id)
        return call is not None and call.approval is not None and self._is_undecided(call_id)

    def _is_undecided(self, call_id: str) -> bool:
        if call_id in self._context.state.results:
            return False
        return self._context.waits.is_open(call_id)

    # -- the agent's tools and handoffs -------------------------------------------------------------------------

    def wrap_tool(self, tool: FunctionTool) -> FunctionTool:
        """Return a tool whose calls are recorded."""
        wrapped = copy.copy(tool)
        wrapped.on_invoke_tool = _Recorded(tool, self.invoke_tool)
        wrapped.timeout_seconds = None  # the timeout holds within the recorded call
        # An approval that a policy asks for is awaited within the recorded call.
        wrapped.needs_approval = False if tool.needs_approval is False else self.needs_approval
        return wrapped

    def make_function_tool(self, tool: HoldfastTool) -> FunctionTool:
        """Return a tool of holdfast as a tool of the SDK.

        Raises:
            DefinitionError: it asks for an order of calls, which the SDK does not keep.
        """
        if tool.sequential:
            raise DefinitionError(
                f"tool {tool.name} is sequential, but the OpenAI Agents SDK makes the calls of a reply at once: leave "
                "out `sequential`, and give the agent ModelSettings(parallel_tool_calls=False)"
            )
        return FunctionTool(
            name=tool.name,
            description=tool.schema.description,
            params_json_schema=tool.schema.parameters,
            on_invoke_tool=_Recorded(tool, self.invoke_tool),
            strict_json_schema=False,
            needs_approval=self.needs_approval,
        )

    def wrap_handoff(
        self, handoff: Handoff[Any, Any], policy: ToolPolicy, resolve: Callable[[Any], Any]
    ) -> Handoff[Any, Any]:
        """Return a handoff that is recorded. `resolve` returns the agent to execute, for an agent or its name."""

        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Any:
            return resolve(await self.invoke_handoff(handoff, context, arguments))

        wrapped = copy.copy(handoff)
        wrapped.on_invoke_handoff = _Recorded(handoff, invoke, policy)
        return wrapped

    # -- making calls -------------------------------------------------------------------------------------------

    async def invoke_tool(self, context: ToolContext[Any], arguments: str) -> Any:
        """Return the recorded result of the call, or make it now."""
        call_id = context.tool_call_id
        if call_id in self._final_outputs:
            return self._final_outputs[call_id].value
        call = self._calls[call_id]
        if isinstance(call, FunctionCall):
            call.bind(context, arguments)
        output = await self._make(call)
        # A tool's own object is more than what is recorded of it, for hooks and for the output of the run.
        return call.returned if isinstance(call, FunctionCall) and call.returned is not None else output.value

    async def invoke_handoff(self, handoff: Handoff[Any, Any], context: Any, arguments: str) -> Any:
        """Return the agent that the handoff leads to, or its name if the handoff was made before."""
        calls = [call for call in self._calls.values() if call.tool == handoff.tool_name]
        call = calls[0]
        assert isinstance(call, HandoffCall), "the SDK makes the handoff that the reply names"
        call.bind(context, arguments)
        return call.get_target(await self._make(call))

    async def _make(self, call: SDKCall) -> ToolOutput:
        """Make a call in a task of its own, which continues if the SDK cancels the call because another one waits."""
        await self._format_denial(call)
        task = asyncio.create_task(self._context.tool_calls.try_execute(call))
        self._tasks.add(task)
        try:
            output = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not self._waits:
                task.cancel()
            raise
        except Exception as exc:
            self._context.attempt.stop_state.record_call_error(exc)
            if self._context.attempt.stop_state.is_resumable_after(exc):
                self.error = self.error or exc
            raise
        if output is WAITING:
            self._waits = True
            raise self._context.waits.make_error()
        result: ToolOutput = output
        return result

    async def _format_denial(self, call: SDKCall) -> None:
        """Let the SDK's formatter word a denial, unless the person has given a reason."""
        wait = self._context.waits.get(call.call_id)
        if self._error_formatter is None or wait is None or wait.kind != "approval":
            return
        decision = self._context.waits.decide(wait)
        if decision is None or decision.kind != "deny" or decision.comment:
            return
        message = self._error_formatter(
            ToolErrorFormatterArgs(
                kind="approval_rejected",
                tool_type="function",
                tool_name=call.tool,
                call_id=call.call_id,
                default_message=DEFAULT_APPROVAL_REJECTION_MESSAGE,
                run_context=self._sdk_context,
            )
        )
        call.denial = await message if inspect.isawaitable(message) else message

    async def close(self) -> None:
        """Wait until no call is in progress. Those that the run does not wait for are cancelled."""
        try:
            if self._waits and self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def waits(self) -> bool:
        """Whether a call of the open reply waits."""
        return self._waits or any(self._is_undecided(call.call_id) for call in self._calls.values() if call.approval)
