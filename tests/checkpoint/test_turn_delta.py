"""What a save adds for turns, phases and events, and what a reader makes of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.checkpoint.codec import Begin, JournalReader, decode, encode
from holdfast.checkpoint.delta import (
    Delta,
    StoredTurns,
    Watermark,
    forget_consumed,
    index_turns,
    is_rewritten,
    make_last_delta,
    make_watermark,
    read_turns,
)
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import MAX_ATTEMPTS, AttemptLog, AttemptRecord, Progress
from holdfast.checkpoint.workers import (
    Claim,
    WorkerHeartbeat,
    WorkerIdentity,
    count_live_workers,
    decode_agents,
    encode_agents,
    this_process,
)
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Reply, ToolResult, Usage, User
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.turns import TurnInput, TurnRecord

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
INFO = RunInfo(run_id="r", agent_name="a", conversation="key")
TURN, INPUT, MESSAGE, BEGIN, EVENT, STEP = (
    EntryKind.TURN, EntryKind.INPUT, EntryKind.MESSAGE, EntryKind.BEGIN, EntryKind.EVENT, EntryKind.STEP
)  # fmt: skip


def make_turn(number: int, *joined: str) -> TurnInput:
    return TurnInput(turn_id=f"t{number}", number=number, at=NOW, joined=dict.fromkeys(joined, "digest"))


def end_turn(number: int, *joined: str) -> TurnRecord:
    return TurnRecord(input=make_turn(number, *joined), output=f"answer {number}", at=NOW)


class Journal:
    """The journal of one run, as deltas have written it."""

    def __init__(self, state: RunState, info: RunInfo = INFO) -> None:
        self.state, self.info = state, info
        self.watermark = Watermark()
        self.entries: list[Entry] = []

    def save(self) -> list[EntryKind]:
        """Apply the next delta, and return the kinds of its entries."""
        delta = Delta(self.watermark, self.state, self.info, NOW, ())
        self.entries = [*([] if delta.write.rewrite else self.entries), *delta.write.entries]
        self.watermark = delta.next_watermark
        del self.state.recorded_events[: delta.event_count]
        assert self.watermark.size == sum(len(entry.body) for entry in self.entries)
        return [entry.kind for entry in delta.write.entries]

    @property
    def recent(self) -> dict[str, int]:
        return dict(self.watermark.turns.recent)


def test_a_turn_begins_once_and_ends_once() -> None:
    state = RunState(turn=make_turn(1))
    state.history.append(User("hello"))
    journal = Journal(state)
    assert journal.save() == [BEGIN, INPUT, MESSAGE]
    state.history.append(Reply(text="answer"))
    state.finish_step()
    assert journal.save() == [MESSAGE, STEP]
    state.turns, state.turn = [end_turn(1)], None
    assert journal.save() == [TURN]
    assert journal.recent == {"t1": 1}
    assert journal.watermark.turns == StoredTurns(ended=1, begun=1, recent={"t1": 1})
    state.turn = make_turn(2, "joined")
    state.history.append(User("more"))
    assert journal.save() == [INPUT, MESSAGE]
    assert journal.recent == {"t1": 1, "t2": 6, "joined": 6}
    assert [entry.seq for entry in journal.entries] == list(range(8))
    assert index_turns(journal.entries, first_seq=0) == {"t1": 1, "t2": 6}


def test_turns_that_ended_unsaved_come_before_the_newest_one() -> None:
    state = RunState(turns=[end_turn(1, "j"), end_turn(2)], turn=make_turn(3))
    state.history.append(User("third"))
    journal = Journal(state)
    assert journal.save() == [BEGIN, TURN, TURN, INPUT, MESSAGE]
    assert journal.recent == {"t1": 1, "j": 1, "t2": 2, "t3": 3}
    ended = RunState(turns=[end_turn(1), end_turn(2)])
    ended.history.append(User("second"))
    journal = Journal(ended)
    assert journal.save() == [BEGIN, TURN, INPUT, MESSAGE, TURN]
    assert journal.recent == {"t1": 1, "t2": 2}
    assert journal.save() == []
    turns = read_turns("r", journal.entries, NATIVE_CODEC)
    assert [(turn.input.turn_id, turn.record is not None, len(turn.messages)) for turn in turns] == [
        ("t1", True, 0), ("t2", True, 1),
    ]  # fmt: skip


def test_without_turns_all_messages_are_of_one() -> None:
    state = RunState()
    state.history.extend([User("one"), User("two")])
    journal = Journal(state)
    journal.save()
    reader = JournalReader("r", NATIVE_CODEC)
    for entry in journal.entries:
        reader.read(entry)
    assert (reader.turn_start, reader.turn_messages) == (0, [User("one"), User("two")])


def test_a_reader_finds_the_turn_in_progress() -> None:
    state = RunState(turn=make_turn(1))
    state.history.append(User("hello"))
    journal = Journal(state)
    journal.save()
    [turn] = read_turns("r", journal.entries, NATIVE_CODEC)
    assert (turn.input.turn_id, turn.record, turn.messages) == ("t1", None, [User("hello")])
    assert read_turns("r", journal.entries[:1], NATIVE_CODEC) == []


def test_a_compaction_within_a_turn_is_counted() -> None:
    state = RunState(turn=make_turn(1))
    state.history.extend([User("a"), Reply(text="b")])
    journal = Journal(state)
    journal.save()
    state.history.rewrite([User("short")])
    state.history.append(Reply(text="c"))
    assert journal.save() == [BEGIN, INPUT, MESSAGE, MESSAGE]
    assert decode(journal.entries[0].body, Begin).repeated == 1
    assert decode(journal.entries[1].body, TurnInput).compacted == 1
    assert [entry.seq for entry in journal.entries] == [4, 5, 6, 7]
    reader = JournalReader("r", NATIVE_CODEC)
    for entry in journal.entries[1:]:
        reader.read(entry)
    assert (reader.turn_start, reader.turn_messages) == (1, [User("short"), Reply(text="c")])
    fresh = Journal(RunState(turn=make_turn(1)))
    fresh.save()
    assert decode(fresh.entries[0].body, Begin).repeated == 0
    assert decode(fresh.entries[1].body, TurnInput).compacted == 0


def test_the_places_of_the_newest_turns_are_kept() -> None:
    state = RunState(turns=[end_turn(number) for number in range(1, 13)], turn=make_turn(13))
    journal = Journal(state)
    journal.save()
    assert list(journal.recent) == [f"t{number}" for number in range(5, 14)]
    assert list(index_turns(journal.entries, first_seq=100)) == [f"t{number}" for number in range(5, 14)]
    assert index_turns(journal.entries, first_seq=100)["t13"] == 113


def test_the_stored_turns_come_from_the_progress() -> None:
    progress = Progress(turns=3, recent_turns={"t3": 9})
    assert StoredTurns.from_progress(progress) == StoredTurns(ended=3, begun=3, recent={"t3": 9})
    begun = Progress(turns=3, turn=make_turn(4), recent_turns={"t4": 9})
    assert StoredTurns.from_progress(begun) == StoredTurns(ended=3, begun=4, recent={"t4": 9})


def test_events_stand_where_they_happened() -> None:
    state = RunState()
    state.history.append(User("hello"))
    state.recorded_events.append((1, b'{"n":1}'))
    journal = Journal(state)
    assert journal.save() == [BEGIN, MESSAGE, EVENT]
    state.recorded_events += [(1, b'{"n":2}'), (2, b'{"n":3}')]
    state.history.append(Reply(text="answer"))
    assert journal.save() == [EVENT, MESSAGE, EVENT]
    assert [entry.body for entry in journal.entries if entry.kind is EVENT] == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    assert journal.save() == []


def test_a_finished_phase_is_written_once() -> None:
    state = RunState()
    state.history.append(User("hello"))
    journal = Journal(state)
    journal.save()
    state.finish_phase("plan", "done")
    assert not is_rewritten(journal.watermark, state)
    state.history.append(User("next"))
    assert journal.save() == [EntryKind.PHASE, MESSAGE]
    assert journal.save() == []
    state.history.append(User("more"))
    assert journal.save() == [MESSAGE]


def test_a_history_is_rewritten_if_it_is_another_one() -> None:
    state = RunState()
    watermark = make_watermark(state, 1, 10)
    assert not is_rewritten(watermark, state)
    assert not is_rewritten(Watermark(), state)
    state.history.rewrite([])
    assert is_rewritten(watermark, state)
    assert is_rewritten(watermark, RunState())


def test_results_and_messages_of_one_save_keep_their_order() -> None:
    state = RunState()
    state.history.append(Reply(text="ask"))
    result = ToolResult(call_id="1", tool="t", content=1)
    state.results = {"1": result}
    journal = Journal(state)
    assert journal.save() == [BEGIN, MESSAGE, EntryKind.RESULT]
    assert journal.save() == []
    state.history.append(result)
    state.finish_step()
    state.history.append(User("next"))
    assert journal.save() == [EntryKind.ADOPT, STEP, MESSAGE]


def test_a_saved_result_that_enters_the_history_before_its_step_ends_is_adopted() -> None:
    result = ToolResult(call_id="1", tool="t", content=1)
    state = RunState(results={"1": result})
    journal = Journal(state)
    journal.save()
    state.results.clear()
    state.history.append(result)
    assert journal.save() == [EntryKind.ADOPT]


@pytest.mark.parametrize(("over", "conversation", "is_kept"), [
    (0, "", True), (1, "", False), (0, "key", True), (1, "key", True), (None, "", True),
])  # fmt: skip
def test_the_last_delta_is_dropped_if_it_is_too_large(over: int | None, conversation: str, is_kept: bool) -> None:
    info = RunInfo(run_id="r", agent_name="a", conversation=conversation)
    state = RunState()
    state.history.append(User("hello"))
    size = Delta(Watermark(), state, info, NOW, ()).next_watermark.size
    limit = None if over is None else size - over
    delta = make_last_delta(Watermark(), state, info, NOW, (), max_size=limit)
    assert (delta is not None) is is_kept


def test_a_rewrite_and_a_state_that_cannot_be_encoded_have_no_last_delta(caplog: pytest.LogCaptureFixture) -> None:
    state = RunState()
    watermark = make_watermark(state, 1, 10)
    assert make_last_delta(watermark, state, INFO, NOW, (), max_size=None) is not None
    state.history.rewrite([User("short")])
    assert make_last_delta(watermark, state, INFO, NOW, (), max_size=None) is None
    assert caplog.text == ""
    broken = RunState()
    broken.history.append(User("\ud800"))
    assert make_last_delta(Watermark(), broken, INFO, NOW, (), max_size=None) is None
    assert "run r: the progress since its last save is lost" in caplog.text


def test_mail_that_was_taken_during_a_write_is_not_forgotten() -> None:
    state = RunState(consumed=["a", "b", "c"])
    consumed = state.consumed
    forget_consumed(state, ["a", "c"])
    assert state.consumed == ["b"]
    assert state.consumed is consumed, "the mailbox adds to it"


# -- attempts ---------------------------------------------------------------------------------------------------------


def make_claim(taken_from: str | None = None) -> Claim:
    return Claim(run_id="r", worker_id="w", token=1, strikes=1, taken_from=taken_from)


def list_attempts(log: AttemptLog) -> list[tuple[int, str, AttemptEnd | None]]:
    return [(each.number, each.worker_id, each.end) for each in log.at_save(NOW)]


def test_an_attempt_is_recorded_with_each_save() -> None:
    log = AttemptLog.begin("w", NOW)
    assert log.at_create() == (AttemptRecord(number=1, worker_id="w", began_at=NOW, saved_at=NOW),)
    [saved] = log.at_save(NOW + SECOND, AttemptEnd.DONE)
    assert (saved.began_at, saved.saved_at, saved.end) == (NOW, NOW + SECOND, AttemptEnd.DONE)
    earlier = log.at_save(NOW)
    idle = AttemptLog(earlier=earlier)
    assert (idle.at_create(), idle.at_save(NOW)) == ((), earlier)


def test_a_worker_that_died_has_an_attempt_too() -> None:
    died = AttemptRecord(number=1, worker_id="dead", began_at=NOW, saved_at=NOW + SECOND)
    known = AttemptLog.resume(make_claim("dead"), NOW, (died,))
    assert list_attempts(known) == [(1, "dead", None), (2, "w", None)]
    unknown = AttemptLog.resume(make_claim("dead"), NOW, ())
    assert list_attempts(unknown) == [(1, "dead", None), (2, "w", None)]
    ended = AttemptRecord(number=1, worker_id="dead", began_at=NOW, saved_at=NOW, end=AttemptEnd.WAITING)
    again = AttemptLog.resume(make_claim("dead"), NOW, (ended,))
    assert list_attempts(again) == [(1, "dead", AttemptEnd.WAITING), (2, "dead", None), (3, "w", None)]
    other = AttemptLog.resume(make_claim("third"), NOW, (died,))
    assert list_attempts(other) == [(1, "dead", None), (2, "third", None), (3, "w", None)]


def test_a_run_that_was_only_created_had_no_attempt() -> None:
    created = AttemptRecord(number=1, worker_id="maker", began_at=NOW, saved_at=NOW)
    assert list_attempts(AttemptLog.resume(make_claim(), NOW, (created,))) == [(1, "w", None)]
    saved = AttemptRecord(number=1, worker_id="maker", began_at=NOW, saved_at=NOW + SECOND)
    assert len(list_attempts(AttemptLog.resume(make_claim(), NOW, (saved,)))) == 2
    ended = AttemptRecord(number=1, worker_id="maker", began_at=NOW, saved_at=NOW, end=AttemptEnd.DONE)
    assert len(list_attempts(AttemptLog.resume(make_claim(), NOW, (ended,)))) == 2


def test_the_newest_attempts_are_kept_and_crashes_before_waits() -> None:
    ends: list[Any] = [None, AttemptEnd.WAITING, None, AttemptEnd.WAITING, *[None] * 6]
    earlier = [AttemptRecord(number=number, worker_id="x", end=end) for number, end in enumerate(ends, 1)]
    log = AttemptLog.begin("w", NOW, earlier)
    assert [each.number for each in log.at_save(NOW)] == [1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert len(log.at_save(NOW)) == MAX_ATTEMPTS == 10
    crashes = [AttemptRecord(number=number, worker_id="x") for number in range(1, 11)]
    assert [each.number for each in AttemptLog.begin("w", NOW, crashes).at_save(NOW)] == list(range(2, 12))
    few = AttemptLog.begin("w", NOW, crashes[:9]).at_save(NOW)
    assert [each.number for each in few] == list(range(1, 11))


# -- progress and workers ---------------------------------------------------------------------------------------------


def test_the_progress_of_a_step_is_that_of_its_end() -> None:
    state = RunState(own_usage=Usage(requests=1), child_usage=Usage(requests=2), port_data={"p": 1}, loop_data={"l": 2})
    state.finish_step()
    state.own_usage, state.port_data, state.loop_data = Usage(requests=9), {}, None
    at_end = Progress.at_step_end(state, state.step_end)
    assert (at_end.usage, at_end.port_data, at_end.loop_data) == (Usage(requests=3), {"p": 1}, {"l": 2})
    now = Progress.from_state(state, {}, ())
    assert (now.usage, now.port_data, now.loop_data) == (Usage(requests=11), {}, None)
    empty = RunState()
    empty.finish_step()
    assert encode(Progress.at_step_end(empty, empty.step_end)) == b'{"steps":1,"elapsed":"P0D"}'


@pytest.mark.parametrize(("agents", "stored"), [(None, "[]"), ((), "null"), (("a", "b"), '["a", "b"]')])
def test_the_agents_of_a_worker_come_back_from_their_stored_form(agents: Any, stored: str) -> None:
    assert encode_agents(agents) == stored
    assert decode_agents(stored) == agents


def test_an_older_worker_makes_the_count_of_workers_unknown() -> None:
    def beat(agents: tuple[str, ...] | None, *, alive: bool) -> WorkerHeartbeat:
        identity = WorkerIdentity(worker_id="w", process=this_process(), agents=agents)
        return WorkerHeartbeat(worker=identity, alive=alive, last_at=NOW)

    assert count_live_workers([beat(("a",), alive=True), beat(None, alive=True)]) is None
    assert count_live_workers([beat(("a",), alive=True), beat(None, alive=False)]) == {"a": 1}
