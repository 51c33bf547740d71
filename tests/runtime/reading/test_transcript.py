"""The transcript of a stored run, read without its agent's code."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.cli.modules import approving
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, ApprovalRequest, Approve, Deny, RunWaiting, sleep, tool
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.codec import RecordedResult, Step, decode, encode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.clock import SYSTEM_CLOCK
from holdfast.runtime.reading.transcript import CallRecord, Transcript, get_loop_name
from holdfast.stores.memory import MemoryStore


async def read_calls(store: MemoryStore) -> tuple[list[CallRecord], list[str]]:
    """The calls of the run, and the kinds of its items."""
    stored = await store.load("r1")
    transcript = Transcript(get_loop_name(stored.record))
    items = transcript.read(stored.entries)
    transcript.close(stored.record)
    return transcript.calls, [item.kind for item in items]


async def test_calls_that_need_an_approval_are_followed_from_question_to_result() -> None:
    store, agent = MemoryStore(), durable(approving.agent)
    async with App([agent], store, worker=False) as app:
        await app.submit(agent, "book", run_id="r1")
        with pytest.raises(RunWaiting):
            await app.resume("r1")
        calls, kinds = await read_calls(store)
        assert [call.state for call in calls] == ["done", "error", "needs approval", "needs approval"]
        assert "message" not in kinds

        await app.answer("r1", "c3", Approve(arguments={"amount": 30}, comment="less"), by="ann", via="slack")
        with pytest.raises(RunWaiting):
            await app.resume("r1")
        [edited] = (await app.get("r1")).decided_calls
        assert (edited.call_id, edited.state) == ("c3", "done")

        await app.answer("r1", "c4", Deny(), by="bob")
        await app.resume("r1")
        calls, kinds = await read_calls(store)
        found: list[tuple[str, Any, str, Any]] = [
            (each.tool, each.arguments, each.state, each.result) for each in calls
        ]
        assert found == [
            ("lookup", {"word": "Lisbon"}, "done", {"found": "Lisbon"}),
            ("lookup", {"word": ""}, "error", "give a word"),
            ("pay", {"amount": 30}, "done", "paid 30"),
            ("pay", {"amount": 5}, "error", "The tool call was denied."),
        ]
        assert [each.original_arguments for each in calls] == [None, None, {"amount": 40}, None]
        assert kinds[-1] == "outcome"
        assert (await app.get("r1")).failed_calls == 2
        first, second = (call.decision for call in (await app.get("r1")).decided_calls)
        assert first is not None
        assert second is not None
        assert (first.kind, first.arguments, first.comment, first.by, first.via) == (
            "approve", {"amount": 30}, "less", "ann", "slack",
        )  # fmt: skip
        assert (second.kind, second.by) == ("deny", "bob")
        assert first.at is not None
        assert second.at is not None
        assert first.at <= second.at


async def test_an_expired_wait_stays_on_record_and_other_waits_leave_none() -> None:
    store = MemoryStore()

    @tool(approval=ApprovalRequest(expires_in=timedelta(milliseconds=1)))
    async def pay() -> str:
        return "paid"

    calls = [call("1", "pay"), call("2", "sleep", seconds=0.001)]
    agent = Agent(name="a", model=ScriptedModel(tool_reply(*calls), "done"), tools=[pay, sleep])
    async with App([agent], store) as app:
        await app.submit(agent, "go", run_id="r1")
        while (await app.get("r1")).status is not RunStatus.DONE:
            await store.wait_for_change(timedelta(seconds=0.05))
        [expired] = (await app.get("r1")).decided_calls
        assert expired.decision is not None
        assert (expired.call_id, expired.state, expired.decision.kind) == ("1", "error", "expire")
        assert expired.decision.at is not None
        assert expired.decision.at <= SYSTEM_CLOCK.now()
        steps = [decode(entry.body, Step) for entry in (await store.load("r1")).entries if entry.kind is EntryKind.STEP]
        first, last = (step.decisions for step in steps)
        assert ([*first], last) == (["1"], {})


def test_messages_and_results_of_a_loop_that_is_not_known_are_shown_as_they_are() -> None:
    transcript = Transcript("of another host")
    result = RecordedResult(call="c1", steps=0, message=msgspec.Raw(b'{"found": 1}'))
    bodies = [(EntryKind.MESSAGE, b'{"say": "hi"}'), (EntryKind.MESSAGE, b"\xff"), (EntryKind.RESULT, encode(result))]
    entries = [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(bodies)]
    assert [(item.kind, item.call_id, item.content) for item in transcript.read(entries)] == [
        ("message", "", {"say": "hi"}),
        ("message", "", "\ufffd"),
        ("result", "c1", {"found": 1}),
    ]
