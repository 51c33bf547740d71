"""The calls in a history of native messages: those that a model asks for, and those of the code of a workflow."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.loop import FinishedCall, PendingCall
from holdfast.core.run.messages import Reply, ToolCall, ToolResult

#: The step of a workflow that records the winner of `first`.
FIRST = "first"


def list_abandoned(result: ToolResult) -> Sequence[str]:
    """Return the ids of the calls in the branches that have lost, if this is the result of a `first`."""
    is_race = result.tool == FIRST and isinstance(result.content, dict)
    return result.content.get("abandoned", ()) if is_race else ()


def list_pending_calls(history: Sequence[Any]) -> list[PendingCall]:
    """Return the calls without a result: those of the last reply of a model, or all that a workflow still wants."""
    last = history[-1] if history else None
    pending: dict[str, ToolCall] = {}
    for message in history:
        if isinstance(message, Reply):
            # Only the calls of a workflow have an effect. Compaction may have removed the results of a model's calls.
            pending |= {call.id: call for call in message.tool_calls if call.effect or message is last}
        elif isinstance(message, ToolResult):
            for call_id in (message.call_id, *list_abandoned(message)):
                pending.pop(call_id, None)
    return [PendingCall(call_id=call.id, tool=call.name, arguments=call.arguments) for call in pending.values()]


def list_finished_calls(history: Sequence[Any], results: Mapping[str, Any] | None = None) -> list[FinishedCall]:
    """Return the calls that have a result, in the order in which they were asked for.

    Args:
        results: recorded results that are not in the history yet, by call id.
    """
    #: Each call with its result. A later reply of a model may reuse the id of a call.
    calls: list[list[Any]] = []
    latest: dict[str, list[Any]] = {}
    for message in [*history, *(results or {}).values()]:
        if isinstance(message, Reply):
            for call in message.tool_calls:
                latest[call.id] = [call, None]
                calls.append(latest[call.id])
        elif isinstance(message, ToolResult) and message.call_id in latest and latest[message.call_id][1] is None:
            latest[message.call_id][1] = message
    return [_make_finished_call(call, result) for call, result in calls if result is not None]


def _make_finished_call(call: ToolCall, result: ToolResult) -> FinishedCall:
    return FinishedCall(
        call_id=call.id, tool=call.name, arguments=call.arguments, content=result.content, error=result.error
    )
