"""Which tool calls have a result, as the native loop reports it. The adapter's is in tests/adapters."""

from collections.abc import Sequence

from tests.scripted_model import call, tool_reply

from holdfast.core.execution.native_loop import NATIVE_LOOP
from holdfast.core.loop import FinishedCall
from holdfast.core.run.messages import Reply, System, ToolResult, User


def result(call_id: str, content: str, *, error: bool = False) -> ToolResult:
    return ToolResult(call_id=call_id, tool="t", content=content, error=error)


def summarize(calls: Sequence[FinishedCall]) -> list[tuple[str, object, object, bool]]:
    return [(each.call_id, each.arguments, each.content, each.error) for each in calls]


HISTORY = [
    System("be nice"),
    User("why?"),
    tool_reply(call("1", "t", x=1), call("2", "t", x=2)),
    result("1", "one"),
    result("2", "two", error=True),
    User("steered"),
    tool_reply(call("1", "t", x=3), text="the id of a call is used again"),
    result("1", "three"),
]


def test_calls_come_with_their_own_results_in_the_order_they_were_asked_for() -> None:
    finished = [("1", {"x": 1}, "one", False), ("2", {"x": 2}, "two", True), ("1", {"x": 3}, "three", False)]
    assert summarize(NATIVE_LOOP.finished_calls([*HISTORY, Reply(text="done")])) == finished
    assert summarize(NATIVE_LOOP.finished_calls(HISTORY)) == finished
    assert summarize(NATIVE_LOOP.finished_calls([])) == []


def test_results_that_are_not_in_the_history_yet_count_for_the_last_reply_alone() -> None:
    history = [*HISTORY, tool_reply(call("1", "t", x=4), call("2", "t", x=5), call("3", "t", x=6))]
    recorded = {"3": result("3", "six"), "1": result("1", "four")}
    assert summarize(NATIVE_LOOP.finished_calls(history, recorded))[3:] == [
        ("1", {"x": 4}, "four", False),
        ("3", {"x": 6}, "six", False),
    ]
    assert len(NATIVE_LOOP.finished_calls(history)) == 3
