"""The transcript of a stored run, read without its agent's code."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.cli.modules import approving
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, ApprovalRequest, Approve, Deny, RunWaiting, sleep, tool
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.codec import Outcome, RecordedResult, Step, decode, encode, encode_begin
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.run.info import NATIVE_LOOP_NAME, RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.run_events import ItemProgress
from holdfast.core.run.state import PhaseOutput, RetryState, StepCalls
from holdfast.core.run.turns import TurnInput, TurnRecord
from holdfast.core.run.waiting import Decision, WaitingCall
from holdfast.runtime.reading.transcript import (
    CallRecord,
    Transcript,
    TranscriptItem,
    get_loop_name,
    read_record_waits,
    read_traces,
)
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


NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def make_entries(*found: tuple[EntryKind, bytes]) -> list[Entry]:
    return [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(found)]


def make_message(message: Any) -> tuple[EntryKind, bytes]:
    return EntryKind.MESSAGE, NATIVE_CODEC.encode(message)


def make_event(name: str, value: Any, kind: str = "custom") -> tuple[EntryKind, bytes]:
    return EntryKind.EVENT, msgspec.json.encode({"type": kind, "name": name, "value": value})


async def make_record(calls: StepCalls, **changes: Any) -> RunRecord:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        await app.submit("a", "go", run_id="r1")
        stored = await store.load("r1")
    given = {
        "status": RunStatus.INTERRUPTED,
        "owner_alive": False,
        "progress": encode(Progress(calls=calls)),
        **changes,
    }
    return msgspec.structs.replace(stored.record, **given)


def test_each_kind_of_entry_has_its_item() -> None:
    usage = Usage(input_tokens=7)
    info = RunInfo(run_id="r1", agent_name="a", prompt="go")
    progress = Progress(steps=2, own_usage=usage, phase="edit", retry=RetryState(count=3))
    step = Step(at=NOW, progress=progress, traces={"c1": "Traceback"})
    turn = TurnInput(turn_id="m1", number=4, at=NOW)
    entries = make_entries(
        (EntryKind.BEGIN, encode_begin(info)),
        make_message(System("be brief")),
        make_message(User("hello")),
        make_message(Reply(text="hi", model="m", tool_calls=[ToolCall(id="c1", name="look", arguments={"a": 1})])),
        make_message(ToolResult(call_id="c1", tool="look", content="no", error=True)),
        (EntryKind.STEP, encode(step)),
        (EntryKind.PHASE, encode(PhaseOutput(name="edit", output={"x": 1}, steps=2))),
        (EntryKind.INPUT, encode(turn)),
        (EntryKind.TURN, encode(TurnRecord(input=turn, output="hi", at=NOW))),
        (EntryKind.TURN, encode(TurnRecord(input=turn, status="failed", error="no", at=NOW))),
        (EntryKind.OUTCOME, encode(Outcome(output="bye", usage=usage))),
        (EntryKind.OUTCOME, encode(Outcome(error="ValueError: no"))),
    )
    transcript = Transcript(NATIVE_LOOP_NAME, {"look": "pure"})
    items = transcript.read(entries)
    made = CallRecord(
        call_id="c1", tool="look", arguments={"a": 1}, state="error", result="no", effect="pure", can_undo=False
    )
    expected: list[dict[str, Any]] = [
        {"kind": "begin", "text": "go"},
        {"kind": "system", "text": "be brief"},
        {"kind": "user", "text": "hello"},
        {"kind": "reply", "text": "hi", "calls": [made], "model": "m"},
        {"kind": "result", "call_id": "c1", "tool": "look", "content": "no", "error": True},
        {"kind": "step", "step": 2, "at": NOW, "usage": usage, "retries": 3, "phase": "edit"},
        {"kind": "phase", "text": "edit", "content": {"x": 1}, "step": 2},
        {"kind": "input", "text": "m1", "step": 4, "at": NOW},
        {"kind": "turn", "step": 4, "at": NOW, "content": "hi"},
        {"kind": "turn", "step": 4, "at": NOW, "text": "no", "error": True},
        {"kind": "outcome", "content": "bye", "usage": usage},
        {"kind": "outcome", "text": "ValueError: no", "error": True},
    ]
    assert items == [TranscriptItem(seq=seq, **fields) for seq, fields in enumerate(expected)]
    assert transcript.calls == [made]
    assert read_traces(entries) == {"c1": "Traceback"}
    assert read_traces(make_entries((EntryKind.EVENT, b'{"traces": 1}'), (EntryKind.STEP, encode(Step(
        at=NOW, progress=progress))))) == {}  # fmt: skip


def test_a_result_of_another_loop_answers_a_call_and_effects_on_record_come_first() -> None:
    asked = ToolCall(id="c1", name="look", effect="once", can_undo=True)
    transcript = Transcript(NATIVE_LOOP_NAME, {"look": "pure"})
    transcript.read(make_entries(make_message(Reply(tool_calls=[asked]))))
    [made] = transcript.calls
    assert (made.effect, made.can_undo, made.state, transcript.unanswered) == ("once", True, "open", [made])
    result = RecordedResult(call="c1", steps=0, message=msgspec.Raw(b'{"other": 1}'))
    transcript.read(make_entries((EntryKind.RESULT, encode(result))))
    assert (made.state, made.result, transcript.unanswered) == ("done", {"other": 1}, [])


def test_the_events_of_a_workflow_have_its_progress_and_its_abandoned_calls() -> None:
    transcript = Transcript(NATIVE_LOOP_NAME)
    asked = [ToolCall(id=f"c{number}", name="look") for number in (1, 2, 3)]
    transcript.read(
        make_entries(
            make_message(Reply(tool_calls=asked)),
            make_event("progress", {"name": "f", "done": 1, "total": 3}),
            make_event("progress", {"name": "f", "done": 2, "total": 3}),
            make_event("progress", "of the user's own code"),
            make_event("other", {"name": "g", "done": 2, "total": 3}),
            make_event("progress", {"name": "g", "done": 2, "total": 3}, kind="other"),
            make_event("abandoned", ["c1", "unknown"]),
            make_event("abandoned", None),
            make_event("other", ["c2"]),
            make_event("abandoned", ["c3"], kind="other"),
        )
    )
    assert transcript.progress == {"f": ItemProgress(name="f", done=2, total=3)}
    assert [each.state for each in transcript.calls] == ["abandoned", "open", "open"]
    assert [each.call_id for each in transcript.unanswered] == ["c1", "c2", "c3"]


@pytest.mark.parametrize(
    ("effect", "in_doubt", "changes", "state"),
    [
        ("pure", (), {}, "open"),
        ("idempotent", (), {}, "open"),
        ("once", (), {}, "in doubt"),
        ("", (), {}, "in doubt"),
        ("pure", ("c1",), {}, "in doubt"),
        ("once", (), {"owner_alive": True}, "running"),
        ("once", (), {"status": RunStatus.CANCELLED}, "open"),
    ],
)
async def test_a_call_without_a_result_is_open_running_or_in_doubt(
    effect: str, in_doubt: tuple[str, ...], changes: dict[str, Any], state: str
) -> None:
    transcript = Transcript(NATIVE_LOOP_NAME, {"look": effect})
    transcript.read(make_entries(make_message(Reply(tool_calls=[ToolCall(id="c1", name="look")]))))
    transcript.close(await make_record(StepCalls(in_doubt=in_doubt), **changes))
    assert [each.state for each in transcript.calls] == [state]


async def test_a_call_that_waits_has_the_fields_of_its_wait_unless_its_run_has_ended() -> None:
    wait = WaitingCall(
        run_id="r1", call_id="c1", step=1, tool="look", kind="approval", arguments={"a": 1}, reason="why", asked_at=NOW,
        expires_at=NOW + timedelta(hours=1), metadata={"b": 2}, audience="boss",
    )  # fmt: skip
    unknown = msgspec.structs.replace(wait, call_id="unknown")
    answered = msgspec.structs.replace(wait, call_id="c2")
    calls = StepCalls(waits={each.call_id: each for each in (wait, unknown, answered)})

    async def read(**changes: Any) -> list[CallRecord]:
        transcript = Transcript(NATIVE_LOOP_NAME)
        asked = [ToolCall(id=call_id, name="look", arguments={"a": 1}) for call_id in ("c1", "c2")]
        result = make_message(ToolResult(call_id="c2", tool="look", content="found"))
        transcript.read(make_entries(make_message(Reply(tool_calls=asked)), result))
        transcript.close(await make_record(calls, **changes))
        return transcript.calls

    first, second = await read(status=RunStatus.WAITING)
    assert first == CallRecord.from_wait(wait)
    assert first == CallRecord(
        call_id="c1", tool="look", arguments={"a": 1}, state="needs approval", result=None, run_id="r1",
        kind="approval", reason="why", digest=wait.digest, asked_at=NOW, expires_at=NOW + timedelta(hours=1),
        metadata={"b": 2}, audience="boss",
    )  # fmt: skip
    assert (second.state, second.kind) == ("done", None)
    assert [each.state for each in await read(status=RunStatus.CANCELLED)] == ["open", "done"]


async def test_records_of_a_newer_version_have_no_waits_and_no_known_loop() -> None:
    record = await make_record(StepCalls())
    assert (get_loop_name(record), list(read_record_waits(record))) == (NATIVE_LOOP_NAME, [])
    newer = msgspec.structs.replace(record, info=b"\xff", progress=b"\xff")
    assert (get_loop_name(newer), list(read_record_waits(newer))) == ("", [])


def test_arguments_that_a_person_has_edited_keep_those_of_the_model_once() -> None:
    call = CallRecord(call_id="c1", tool="look", arguments={"a": 1}, state="open", result=None)
    for kind, arguments in (("deny", {"a": 0}), ("approve", None)):
        call.decision = None
        call.add_decision(Decision(kind=kind, arguments=arguments))  # type: ignore[arg-type]
        assert (call.arguments, call.original_arguments) == ({"a": 1}, None)
    call.decision = None
    for _ in range(2):  # it is read with its step and with the record
        call.add_decision(Decision(kind="approve", arguments={"a": 2}))
        assert (call.arguments, call.original_arguments) == ({"a": 2}, {"a": 1})
