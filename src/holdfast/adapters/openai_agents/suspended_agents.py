"""Agents as tools that wait: for approvals of calls that the agent within the tool has asked for."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from agents import Agent, RunState, ToolApprovalItem
from agents.agent_tool_state import (
    consume_agent_tool_run_result,
    get_agent_tool_state_scope,
    record_agent_tool_resume_state,
)
from agents.result import RunResult, RunResultStreaming
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall

from holdfast.adapters.call_arguments import make_fixed_schema
from holdfast.adapters.openai_agents.message_codec import parse_arguments
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.calling.waits import format_expiry
from holdfast.core.execution.step import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.run.waiting import ApprovalRequest, Decision, WaitingCall, format_denial


class SuspendedAgents:
    """The agents within calls of the open reply that wait for approvals.

    The SDK's state of such an agent is part of the run's state until all its approvals are decided. A nested call is
    answered under the id of the outer call, a slash, and its own id. Its arguments cannot be edited.
    """

    def __init__(self, context: StepContext) -> None:
        self._context = context

    @property
    def call_ids(self) -> Collection[str]:
        """The calls that wait so: they are not in doubt."""
        return self._states.keys()

    @property
    def _states(self) -> dict[str, Any]:
        """The stored states, by the id of the call."""
        states: dict[str, Any] = (self._context.state.loop_data or {}).get("suspended", {})
        return states

    def _set(self, states: Mapping[str, Any]) -> None:
        others = {name: each for name, each in (self._context.state.loop_data or {}).items() if name != "suspended"}
        self._context.state.loop_data = {**others, **({"suspended": dict(states)} if states else {})}

    def suspend(self, call_id: str, tool_context: ToolContext[Any]) -> bool:
        """Return whether the agent that this call has run waits. Then its state and its calls are recorded.

        Raises:
            DefinitionError: it asks for an approval of something else than a function tool.
        """
        state = _take_state(tool_context)
        if state is None:
            return False
        calls: list[str] = []
        for item in state.get_interruptions():
            nested = _get_call(item)
            arguments = parse_arguments(nested.arguments)
            context = self._context.tool_calls.make_context(f"{call_id}/{nested.call_id}", nested.name, arguments)
            asked = ApprovalRequest(reason=f"asked by agent {item.agent.name}")
            self._context.waits.add_approval(context, asked, schema=make_fixed_schema(arguments))
            calls.append(nested.call_id)
        stored = to_json_value(state.to_json(context_serializer=_omit_context), "the state of an agent within a tool")
        self._set({**self._states, call_id: {"calls": calls, "state": stored}})
        return True

    def is_waiting(self, call_id: str) -> bool:
        """Whether the agent within this call waits for a decision."""
        return None in [self._context.waits.decide(wait) for wait in self._find_waits(call_id).values()]

    async def resume(self, call_id: str, tool_context: ToolContext[Any], agent: Agent[Any]) -> None:
        """Let the SDK continue the agent within this call where it has stopped, with the decisions about its calls.

        They are consumed, and the call counts as started, before it is.
        """
        if call_id not in self._states:
            return
        waits = self._find_waits(call_id)
        decisions = {each: (wait, self._context.waits.decide(wait)) for each, wait in waits.items()}
        state = await RunState.from_json(agent, self._states[call_id]["state"])
        for item in state.get_interruptions():
            wait, decision = decisions[_get_call(item).call_id]
            assert decision is not None, "an agent is resumed when all its calls are decided"
            if decision.kind == "approve":
                state.approve(item)
            else:
                state.reject(item, rejection_message=_format_refusal(wait, decision))
        for wait in waits.values():
            self._context.waits.remove(wait.call_id)
        self._set({each: state for each, state in self._states.items() if each != call_id})
        await self._context.attempt.saver.save(must_succeed=True)
        assert tool_context.tool_call is not None, "the SDK names the call"
        record_agent_tool_resume_state(tool_context.tool_call, state, scope_id=get_agent_tool_state_scope(tool_context))

    def _find_waits(self, call_id: str) -> dict[str, WaitingCall]:
        """Return the waits of the calls that the agent within this call has asked for, by their own ids."""
        calls: Sequence[str] = self._states[call_id]["calls"] if call_id in self._states else ()
        waits = self._context.state.calls.waits
        return {each: waits[f"{call_id}/{each}"] for each in calls}


def _take_state(context: ToolContext[Any]) -> RunState[Any, Any] | None:
    """Return the state of the agent that the call has run, if it waits."""
    if context.tool_call is None:
        return None
    result = consume_agent_tool_run_result(context.tool_call, scope_id=get_agent_tool_state_scope(context))
    if isinstance(result, RunResult | RunResultStreaming) and result.interruptions:
        return result.to_state()
    return None


def _get_call(item: ToolApprovalItem) -> ResponseFunctionToolCall:
    if not isinstance(item.raw_item, ResponseFunctionToolCall):
        raise DefinitionError(
            f"{item.name} of agent {item.agent.name} asks for an approval that a durable run cannot give: only "
            "calls of function tools can wait"
        )
    return item.raw_item


def _format_refusal(wait: WaitingCall, decision: Decision) -> str:
    match decision.kind:
        case "deny":
            return format_denial(decision)
        case "expire":
            return format_expiry(wait)
    value = decision.value
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _omit_context(context: Any) -> dict[str, Any]:
    """Return no context: each resume builds a new one."""
    return {}
