"""Which tool calls of an agent of pydantic-ai have a result."""

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolReturnPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from tests.adapters.scripted_model import call

from holdfast.adapters.pydantic_ai import durable
from holdfast.core.execution.native_loop import get_loop


def result(call_id: str, content: str, *, failed: bool = False) -> ModelRequest:
    outcome = "failed" if failed else "success"
    return ModelRequest(parts=[ToolReturnPart("t", content, call_id, outcome=outcome)])  # type: ignore[arg-type]


def test_calls_come_with_their_own_results_in_the_order_they_were_asked_for() -> None:
    loop = get_loop(durable(Agent(TestModel(), name="a")))
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("why?")]),
        ModelResponse(parts=[call("1", "t", x=1), call("2", "t", x=2)]),
        result("2", "two", failed=True),
        result("1", "one"),
        ModelResponse(parts=[call("1", "t", x=3), call("2", "t", x=4)]),
    ]
    finished = [
        (each.call_id, each.tool, each.arguments, each.content, each.error)
        for each in loop.finished_calls(history, {"2": result("2", "four")})
    ]
    assert finished == [
        ("1", "t", {"x": 1}, "one", False),
        ("2", "t", {"x": 2}, "two", True),
        ("2", "t", {"x": 4}, "four", False),
    ]
    assert len(loop.finished_calls(history)) == 2
