"""Deferred calls of pydantic-ai as calls that wait: recorded with the run, and answered by mail."""

from collections.abc import Mapping
from typing import Any

from pydantic_ai import DeferredToolRequests, DeferredToolResults
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolApproved, ToolDenied
from pydantic_core import PydanticSerializationError, to_jsonable_python

from holdfast.adapters.pydantic_ai.tool_results import ToolResultBuilder
from holdfast.adapters.pydantic_ai.toolset import OpenCall
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import PayloadError
from holdfast.core.execution.calling.waits import format_expiry
from holdfast.core.execution.step import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.run.waiting import ApprovalRequest, Decision, WaitingCall

#: The kinds of waits that a capability of the agent may end at once.
_DEFERRED_KINDS = ("approval", "result")


class DeferredCalls:
    """The calls of the open reply that wait, in pydantic-ai's terms."""

    def __init__(self, context: StepContext) -> None:
        self._context, self._waits = context, context.waits
        #: The calls of the open reply, by id. Calls that a tool makes are not among them.
        self.calls: Mapping[str, OpenCall] = {}

    def add_approval(self, call: OpenCall, metadata: Mapping[str, Any] | None = None) -> WaitingCall:
        """Record that a call waits for a person's approval. A `reason` in the metadata is the reason."""
        request = call.policy.request_approval(call.arguments) or ApprovalRequest()
        lowered = dump_metadata(metadata)
        schema = None if call.definition is None else call.definition.parameters_json_schema
        return self._waits.add_approval(self._make_context(call), add_reason(request, lowered), lowered, schema=schema)

    def _make_context(self, call: OpenCall) -> ToolContext:
        return self._context.tool_calls.make_context(call.call_id, call.tool, call.arguments)

    def find_answers(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """Return the answers that this process or an earlier one has read."""
        answers = DeferredToolResults()
        for part in requests.approvals:
            if (answer := self._find_approval(part)) is not None:
                answers.approvals[part.tool_call_id] = answer
                wait = self._waits.get(part.tool_call_id)
                if wait is not None and wait.metadata:
                    answers.metadata[part.tool_call_id] = wait.metadata
        for part in requests.calls:
            wait = self._waits.get(part.tool_call_id)
            if wait is not None and wait.kind == "result" and (decision := self._waits.decide(wait)) is not None:
                answers.calls[part.tool_call_id] = _make_call_result(wait, decision)
        return answers

    def _find_approval(self, part: ToolCallPart) -> bool | ToolApproved | ToolDenied | None:
        call_id = part.tool_call_id
        if call_id in self.calls and call_id in self._context.state.results:
            return True  # it was made, or has expired: its recorded result is returned
        wait = self._waits.get(call_id)
        decision = None if wait is None else wait.approval or self._waits.decide(wait)
        if wait is None or decision is None:
            return None
        match decision.kind:
            case "deny":
                return ToolDenied(decision.comment) if decision.comment else ToolDenied()
            case "expire":
                result = ToolResultBuilder(part.tool_name, call_id).make_error_result(format_expiry(wait))
                self._context.state.results[call_id] = result
                return True
        return ToolApproved(override_args=decision.arguments)

    def list_undecided(self, requests: DeferredToolRequests | None) -> DeferredToolRequests | None:
        """Return the requests without the calls that wait for a time, a signal or a child run."""
        if requests is None:
            return None
        calls = [part for part in requests.calls if self._is_deferred(part)]
        if not calls and not requests.approvals:
            return None
        return DeferredToolRequests(calls=calls, approvals=requests.approvals, metadata=requests.metadata)

    def _is_deferred(self, part: ToolCallPart) -> bool:
        wait = self._waits.get(part.tool_call_id)
        return wait is None or wait.kind in _DEFERRED_KINDS

    def add_waits(self, requests: DeferredToolRequests, handled: DeferredToolResults | None) -> None:
        """Record that these calls wait, except those that a capability of the agent has handled."""
        done = set() if handled is None else handled.approvals.keys() | handled.calls.keys()
        for part in (*requests.approvals, *requests.calls):
            call_id, call = part.tool_call_id, self.calls.get(part.tool_call_id)
            wait, metadata = self._waits.get(call_id), requests.metadata.get(call_id)
            if call_id in done:
                if wait is not None:
                    self._waits.remove(call_id)
            elif wait is None and call is not None:
                if part in requests.approvals:
                    self.add_approval(call, metadata)
                else:
                    self._add_external(call, metadata)

    def _add_external(self, call: OpenCall, metadata: Mapping[str, Any] | None) -> WaitingCall:
        """Record that the result of a call comes from outside. No tool was called that could know a token."""
        lowered = dump_metadata(metadata)
        reason = add_reason(ApprovalRequest(), lowered).reason
        return self._waits.add(
            self._make_context(call),
            "result",
            reason=reason,
            metadata=lowered,
        )


def dump_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the metadata of a call that waits as plain data.

    Raises:
        PayloadError: it cannot be stored.
    """
    try:
        return to_json_value(to_jsonable_python(metadata), "the metadata of a call that waits")  # type: ignore[no-any-return]
    except PydanticSerializationError as exc:
        raise PayloadError(f"the metadata of a call that waits cannot be stored: {exc}") from exc


def add_reason(request: ApprovalRequest, metadata: dict[str, Any] | None) -> ApprovalRequest:
    """Return the request with the reason of the metadata, if it has none of its own."""
    reason = (metadata or {}).get("reason")
    if request.reason or not isinstance(reason, str):
        return request
    return ApprovalRequest(reason=reason, expires_in=request.expires_in, audience=request.audience)


def _make_call_result(wait: WaitingCall, decision: Decision) -> Any:
    match decision.kind:
        case "deny":
            return ToolFailed(decision.comment or "The tool call was denied.")
        case "expire":
            return ToolFailed(format_expiry(wait))
    return decision.value
