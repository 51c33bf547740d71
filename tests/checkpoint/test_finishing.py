"""How claims end, and the records of runs."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.finishing import Ending, end_done, end_failed, end_left, make_notice, make_release
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import Release, RunFilter, RunRecord, RunStatus, make_damaged_record, restore_previous
from holdfast.checkpoint.workers import Claim, backoff
from holdfast.config import Retention
from holdfast.core.errors import RunCancelled
from holdfast.core.ports import Leave
from holdfast.core.run.info import RunIndex, RunInfo
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.status import AttemptEnd

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_claim(strikes: int) -> Claim:
    return Claim(run_id="run-1", worker_id="worker-1", token=1, strikes=strikes)


@pytest.mark.parametrize("strikes", [2, 3])
def test_a_strike_delays_the_next_attempt_by_its_backoff(strikes: int) -> None:
    ending = end_left(Leave(strike=True), make_claim(strikes), NOW, progressed=False)
    assert ending.strikes == strikes
    assert ending.delay == backoff(strikes) > timedelta(0)


def test_an_attempt_that_leaves_without_a_strike_is_not_delayed_by_earlier_ones() -> None:
    ending = end_left(Leave(), make_claim(3), NOW, progressed=False)
    assert ending.strikes == 2
    assert ending.delay == timedelta(0)


def test_the_record_of_a_damaged_row_is_parked_and_has_no_owner() -> None:
    index = RunIndex(run_id="run-1", agent_name="agent")
    record = make_damaged_record(index, NOW, ValueError("not what was written"))
    assert (record.status, record.owner, record.owner_alive) == (RunStatus.PARKED, None, False)
    assert (record.strikes, record.token, record.next_seq, record.size) == (0, 0, 0, 0)
    assert (record.created_at, record.not_before, record.cancel_requested) == (NOW, NOW, False)
    assert record.reason == "damaged: its record is not what was written (not what was written)"


def test_a_step_clears_the_strikes_and_so_does_parking() -> None:
    assert end_left(Leave(), make_claim(3), NOW, progressed=True).strikes == 0
    assert end_left(Leave(AttemptEnd.PARKED), make_claim(3), NOW, progressed=False).strikes == 0
    assert end_left(Leave(AttemptEnd.WAITING), make_claim(3), NOW, progressed=False).strikes == 2
    assert end_left(Leave(), make_claim(0), NOW, progressed=False).strikes == 0
    assert end_left(Leave(), None, NOW, progressed=False).strikes == 0


def test_a_run_that_waits_for_a_time_is_not_resumed_before_it() -> None:
    for seconds, delay in ((60, 60), (-60, 0)):
        leaving = Leave(AttemptEnd.WAITING, wake_at=NOW + timedelta(seconds=seconds), wake_on=("message",))
        ending = end_left(leaving, make_claim(1), NOW, progressed=True)
        assert (ending.status, ending.delay) == (RunStatus.WAITING, timedelta(seconds=delay))
        assert (ending.wake_at, ending.wake_on) == (leaving.wake_at, ("message",))
    ending = end_left(Leave(delay=timedelta(seconds=9), strike=True), make_claim(2), NOW, progressed=False)
    assert ending.delay == timedelta(seconds=9)


@pytest.mark.parametrize(("retention", "parent", "is_removed"), [
    (timedelta(0), None, True), (timedelta(0), "parent", False), (timedelta(1), None, False),
])  # fmt: skip
def test_a_run_without_a_retention_is_removed_unless_its_parent_may_read_it(
    retention: timedelta, parent: str | None, is_removed: bool
) -> None:
    info = RunInfo(run_id="run-1", agent_name="agent", parent_run_id=parent)
    kept = Retention(done=retention, failed=retention, cancelled=retention)
    endings = [end_done("x", NO_USAGE, info, kept), end_failed(ValueError("no"), NO_USAGE, info, kept)]
    endings.append(end_failed(RunCancelled("stop"), NO_USAGE, info, kept))
    assert [ending.status for ending in endings] == [RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED]
    assert [(ending.is_removed, ending.retention) for ending in endings] == [(is_removed, retention)] * 3
    assert {(ending.strikes, ending.delay, ending.wake_at) for ending in endings} == {(0, timedelta(0), None)}


def test_the_run_that_has_started_another_is_notified_of_its_end() -> None:
    usage = Usage(input_tokens=3)
    started = RunInfo(run_id="run-1", agent_name="agent", started_by="starter")
    notice = make_notice(started, RunStatus.FAILED, usage, 7)
    assert notice is not None
    assert (notice.run_id, notice.mail.mail_id.rpartition(":")[2]) == ("starter", "7")
    assert msgspec.json.decode(notice.mail.body)["status"] == "failed"
    assert "input_tokens" not in str(notice.mail.body), "the usage of a detached run is its own"
    child = RunInfo(run_id="run-1", agent_name="agent", parent_run_id="starter", background=True)
    notice = make_notice(child, RunStatus.DONE, usage, 7)
    assert notice is not None
    assert msgspec.json.decode(notice.mail.body)["usage"]["input_tokens"] == 3
    assert make_notice(child, RunStatus.PARKED, usage, 7) is None
    assert make_notice(RunInfo(run_id="run-1", agent_name="agent"), RunStatus.DONE, usage, 7) is None


def test_a_release_has_text_that_every_store_can_keep_and_the_outcome_last() -> None:
    ending = Ending(status=RunStatus.FAILED, reason="cut \ud83d and \0", outcome=b"{}", strikes=2)
    release = make_release(ending, None, 5, b"progress", None)
    assert (release.reason, release.progress, release.strikes) == ("cut ? and \ufffd", b"progress", 2)
    assert [(entry.seq, entry.kind, entry.body) for entry in release.entries] == [(5, EntryKind.OUTCOME, b"{}")]
    assert make_release(Ending(status=RunStatus.PARKED), None, 5, None, None).entries == []


def make_record(**fields: Any) -> RunRecord:
    record = make_damaged_record(RunIndex(run_id="run-1", agent_name="agent"), NOW, ValueError("no"))
    return msgspec.structs.replace(record, **fields)


def test_a_claim_that_was_not_used_is_undone() -> None:
    later = NOW + timedelta(minutes=1)
    waiting = make_record(status=RunStatus.WAITING, reason="for mail", wake_at=later, wake_on=["message"])
    release = restore_previous(make_claim(3), waiting, now=NOW)
    assert (release.status, release.reason, release.strikes) == (RunStatus.WAITING, "for mail", 2)
    assert (release.wake_at, release.wake_on, release.retention) == (later, ["message"], None)
    for expires_at, left in ((later, timedelta(minutes=1)), (NOW - timedelta(1), timedelta(0))):
        done = make_record(status=RunStatus.DONE, expires_at=expires_at)
        assert restore_previous(make_claim(1), done, now=NOW).retention == left
    queued = make_record(status=RunStatus.QUEUED, reason="is due")
    release = restore_previous(make_claim(0), queued, delay=timedelta(1))
    assert (release.status, release.reason) == (RunStatus.INTERRUPTED, "is due")
    assert (release.strikes, release.delay) == (0, timedelta(1))
    assert restore_previous(make_claim(1), queued, reason="another").reason == "another"
    assert restore_previous(make_claim(1)).status is RunStatus.INTERRUPTED


def test_a_release_that_makes_no_sense_is_refused() -> None:
    for status in (RunStatus.RUNNING, RunStatus.QUEUED):
        with pytest.raises(ValueError, match="a claim cannot leave a run"):
            Release(status=status)
    with pytest.raises(ValueError, match="only a waiting run has a wake_at"):
        Release(status=RunStatus.DONE, wake_at=NOW)


def test_a_running_run_without_a_live_owner_is_interrupted() -> None:
    for status, alive, expected, is_interrupted in (
        (RunStatus.RUNNING, False, RunStatus.INTERRUPTED, True), (RunStatus.RUNNING, True, RunStatus.RUNNING, False),
        (RunStatus.QUEUED, False, RunStatus.QUEUED, True), (RunStatus.PARKED, False, RunStatus.PARKED, False),
    ):  # fmt: skip
        record = make_record(status=status, owner_alive=alive)
        assert (record.current_status, record.is_interrupted, record.is_terminal) == (expected, is_interrupted, False)
    assert make_record(status=RunStatus.CANCELLED).is_terminal


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({}, True),
        ({"interrupted": True}, False),
        ({"statuses": frozenset({RunStatus.PARKED})}, True),
        ({"statuses": frozenset({RunStatus.DONE})}, False),
        ({"statuses": frozenset()}, False),
        ({"agent_name": "agent"}, True),
        ({"agent_name": "other"}, False),
        ({"caller_id": "ann"}, True),
        ({"caller_id": "bob"}, False),
        ({"caller_id": ""}, False),
        ({"parent_run_id": "p"}, True),
        ({"parent_run_id": "q"}, False),
        ({"tenant": "t"}, True),
        ({"tenant": ""}, False),
        ({"labels": {"a": "1"}}, True),
        ({"labels": {"a": "1", "b": "2"}}, True),
        ({"labels": {"a": "2"}}, False),
        ({"labels": {"a": "1", "c": "3"}}, False),
        ({"created_after": NOW}, True),
        ({"created_after": NOW + timedelta(1)}, False),
        ({"created_before": NOW + timedelta(1)}, True),
        ({"created_before": NOW}, False),
        ({"agent_name": "agent", "caller_id": "bob"}, False),
    ],
    ids=repr,
)
def test_a_filter_matches_runs_that_fit_every_field(wanted: dict[str, Any], matches: bool) -> None:
    record = make_record(caller_id="ann", parent_run_id="p", tenant="t", labels={"a": "1", "b": "2"})
    assert RunFilter(**wanted).matches(record) is matches


def test_a_filter_of_interrupted_runs_matches_those_without_an_owner() -> None:
    wanted = RunFilter(interrupted=True)
    assert wanted.matches(make_record(status=RunStatus.RUNNING, owner_alive=False))
    assert not wanted.matches(make_record(status=RunStatus.RUNNING, owner_alive=True))
