"""Events of journal entries and records, and their cursors."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.codec import Begin, Outcome, Step, encode, encode_begin
from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.run_events import (
    CallsWaiting,
    ErrorRecorded,
    HistoryRewritten,
    MessageAdded,
    OutputRecorded,
    PhaseFinished,
    ReplyAdded,
    RetryScheduled,
    StatusChanged,
    StepFinished,
    StepStarted,
    ToolCalled,
    ToolReturned,
    TurnFinished,
    TurnStarted,
)
from holdfast.core.run.state import PhaseOutput, StepCalls
from holdfast.core.run.turns import TurnInput, TurnRecord
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.streams.entry_events import (
    EventCursor,
    check_cursor,
    describe_present,
    get_incarnation,
    read_events,
)
from holdfast.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
INFO = RunInfo(run_id="r", agent_name="a", prompt="go")


async def make_record(**changes: Any) -> RunRecord:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        record = await get_record(store, "r")
    return msgspec.structs.replace(record, created_at=NOW, next_seq=20, **changes)


def number(found: list[tuple[EntryKind, bytes]], first: int = 0) -> list[Entry]:
    return [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(found, first)]


def say(message: Any) -> tuple[EntryKind, bytes]:
    return EntryKind.MESSAGE, NATIVE_CODEC.encode(message)


def test_a_cursor_is_read_as_it_was_written_and_other_text_is_refused() -> None:
    cursor = EventCursor("1f", 3, 0)
    assert (str(cursor), EventCursor.parse("1f-3-0")) == ("1f-3-0", cursor)
    refused: Any
    for refused in ("", "1f-3", "1f-3-0-", " 1f-3-0", "1F-3-0", "x-3-0", "1f--3-0", f"{'1' * 17}-3-0", None, 7):
        with pytest.raises(InvalidCursor):
            EventCursor.parse(refused)
    assert get_incarnation(datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)) == f"{1_000_005:x}"


async def test_a_cursor_of_another_run_or_of_the_future_is_refused() -> None:
    record = await make_record()
    own = get_incarnation(NOW)
    check_cursor(EventCursor(own, 19, 5), record)
    for refused in (EventCursor(own, 20, 0), EventCursor(get_incarnation(NOW + timedelta(seconds=1)), 1, 0)):
        with pytest.raises(InvalidCursor):
            check_cursor(refused, record)


async def test_each_entry_has_its_events_in_order_and_a_cursor_continues_within_one() -> None:
    record = await make_record()
    calls = [ToolCall(id="c1", name="look", arguments={"a": 1}), ToolCall(id="c2", name="look")]
    usage = Usage(input_tokens=7)
    turn = TurnInput(turn_id="m1", number=4, at=NOW, prompt="hello")
    retry = RetryScheduled(run_id="of the run that was forked", error="slow")
    entries = number(
        [
            (EntryKind.BEGIN, encode_begin(INFO)),
            say(System("be brief")),
            say(User("hello")),
            say(Reply(text="hi", tool_calls=calls)),
            say(ToolResult(call_id="c1", tool="look", content="no", error=True)),
            (EntryKind.EVENT, msgspec.json.encode(retry)),
            (EntryKind.EVENT, b'{"type": "of a newer version"}'),
            (EntryKind.STEP, encode(Step(at=NOW, progress=Progress(steps=2, own_usage=usage)))),
            (EntryKind.PHASE, encode(PhaseOutput(name="edit", output="x", steps=2))),
            (EntryKind.INPUT, encode(turn)),
            (EntryKind.TURN, encode(TurnRecord(input=turn, output="hi", usage=usage, at=NOW))),
            (EntryKind.OUTCOME, encode(Outcome(output="bye", usage=usage))),
            (EntryKind.OUTCOME, encode(Outcome(error="no"))),
        ]
    )
    expected: list[tuple[int, int, Any]] = [
        (1, 0, MessageAdded(run_id="r", role="system", content="be brief")),
        (2, 0, MessageAdded(run_id="r", role="user", content="hello")),
        (3, 0, ReplyAdded(run_id="r", text="hi")),
        (3, 1, ToolCalled(run_id="r", call_id="c1", tool="look", arguments={"a": 1})),
        (3, 2, ToolCalled(run_id="r", call_id="c2", tool="look", arguments={})),
        (4, 0, ToolReturned(run_id="r", call_id="c1", tool="look", content="no", error=True)),
        (5, 0, msgspec.structs.replace(retry, run_id="r")),
        (7, 0, StepFinished(run_id="r", at=NOW, step=2, usage=usage)),
        (8, 0, PhaseFinished(run_id="r", name="edit", output="x", step=2)),
        (9, 0, TurnStarted(run_id="r", at=NOW, turn_id="m1", number=4, prompt="hello")),
        (10, 0, TurnFinished(run_id="r", at=NOW, turn_id="m1", number=4, status="done", output="hi", usage=usage)),
        (11, 0, OutputRecorded(run_id="r", output="bye", usage=usage)),
        (12, 0, ErrorRecorded(run_id="r", error="no")),
    ]
    own = get_incarnation(NOW)
    whole = [(seq, msgspec.structs.replace(event, cursor=f"{own}-{seq}-{place}")) for seq, place, event in expected]
    assert list(read_events(record, entries, None)) == whole
    assert list(read_events(record, entries[3:], EventCursor(own, 3, 0))) == whole[3:]
    assert list(read_events(record, entries[3:], EventCursor(own, 3, 2))) == whole[5:]
    other = await make_record(info=b"\xff")
    [(_, unknown)] = read_events(other, number([(EntryKind.MESSAGE, b'{"say": "hi"}')]), None)
    assert unknown == MessageAdded(run_id="r", role="user", content={"say": "hi"}, cursor=f"{own}-0-0")


async def test_a_rewritten_journal_is_one_event_for_a_reader_that_was_there_before() -> None:
    record = await make_record()
    phase = (EntryKind.PHASE, encode(PhaseOutput(name="edit", output="x", steps=2)))
    rewritten = [
        (EntryKind.BEGIN, encode(Begin(info=INFO, repeated=2))),
        phase,
        say(User("so far")),
        say(Reply(text="fine")),
        say(Reply(text="new")),
    ]
    entries = number(rewritten, first=5)
    own = get_incarnation(NOW)
    seen = list(read_events(record, entries, EventCursor(own, 4, 0)))
    assert [(seq, event.type, event.cursor) for seq, event in seen] == [
        (8, "history_rewritten", f"{own}-8-0"),
        (9, "reply", f"{own}-9-0"),
    ]
    repeated = seen[0][1]
    assert isinstance(repeated, HistoryRewritten)
    assert [event.type for event in repeated.events] == ["phase_finished", "message", "reply"]
    first = [event.type for _, event in read_events(record, entries, None)]
    assert first == ["phase_finished", "message", "reply", "reply"], "a reader that begins gets them like any others"
    begun = number([(EntryKind.BEGIN, encode(Begin(info=INFO, repeated=1))), say(User("go"))])
    assert [event.type for _, event in read_events(record, begun, EventCursor(own, -1, 0))] == ["message"]


async def test_the_present_of_a_run_depends_on_its_status() -> None:
    wait = WaitingCall(run_id="r", call_id="c", step=1, tool="look", kind="approval", arguments={}, asked_at=NOW)
    progress = encode(Progress(steps=2, calls=StepCalls(waits={"c": wait})))
    running = await make_record(status=RunStatus.RUNNING, owner="w", owner_alive=True, progress=progress)

    def describe(**changes: Any) -> tuple[Any, ...]:
        return describe_present(msgspec.structs.replace(running, **changes))

    status = StatusChanged(run_id="r", status="running")
    assert describe() == (status, StepStarted(run_id="r", step=3))
    assert describe(progress=b"\xff") == (status, StepStarted(run_id="r", step=1))
    assert describe(owner_alive=False) == (StatusChanged(run_id="r", status="interrupted"),)
    assert describe(status=RunStatus.WAITING, reason="approval") == (
        StatusChanged(run_id="r", status="waiting", reason="approval"),
        CallsWaiting(run_id="r", calls=(wait,)),
    )
    assert describe(status=RunStatus.DONE) == (StatusChanged(run_id="r", status="done"),)
