"""The transcript of a stored run, read without its agent's code."""

from typing import Any

import pytest
from tests.cli.modules import approving

from holdfast import App
from holdfast.adapters.pydantic_ai import durable
from holdfast.core.errors import RunParked
from holdfast.runtime.transcript import Call, Transcript
from holdfast.stores.memory import MemoryStore


async def read_calls(store: MemoryStore) -> tuple[list[Call], list[str]]:
    """The calls of the run, and the kinds of its items."""
    stored = await store.load("r1")
    transcript = Transcript()
    items = transcript.read(stored.entries)
    transcript.close(stored.record)
    return transcript.calls, [item.kind for item in items]


async def test_calls_that_need_an_approval_are_followed_from_question_to_result() -> None:
    store, agent = MemoryStore(), durable(approving.agent)
    async with App([agent], store, worker=False) as app:
        await app.submit(agent, "book", run_id="r1")
        with pytest.raises(RunParked):
            await app.resume("r1")
        calls, kinds = await read_calls(store)
        assert [call.state for call in calls] == ["done", "error", "needs approval", "needs approval"]
        assert "message" not in kinds

        await app.unpark("r1", {"c3": True, "c4": False})
        calls, kinds = await read_calls(store)
        assert [call.state for call in calls[2:]] == ["resolved", "resolved"]
        assert kinds.count("resolution") == 2

        await app.resume("r1")
        calls, kinds = await read_calls(store)
        found: list[tuple[str, Any, str, Any]] = [
            (each.tool, each.arguments, each.state, each.result) for each in calls
        ]
        assert found == [
            ("lookup", {"word": "Lisbon"}, "done", {"found": "Lisbon"}),
            ("lookup", {"word": ""}, "error", "give a word"),
            ("pay", {"amount": 40}, "done", "paid 40"),
            ("pay", {"amount": 5}, "error", "The tool call was denied."),
        ]
        assert kinds[-1] == "outcome"
