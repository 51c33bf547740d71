"""The sentence, the times and the reason of a run, as every list and page shows them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.checkpoint.workers import RunCount
from holdfast.core.run.mail import BUDGET_TOPIC
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.reading.activity import Activity, compare_activity, join_workers
from holdfast.runtime.reading.formatting import (
    cut_text,
    format_age,
    format_amount,
    format_arguments,
    format_call,
    format_cost,
    format_count,
    format_duration,
    format_number,
    format_size,
    format_span,
    format_value,
    format_whole_call,
)
from holdfast.runtime.reading.run_summary import (
    RunSummary,
    describe_reason,
    describe_run,
    describe_status,
    describe_times,
    measure_times,
    summarize_run,
)
from holdfast.stores.memory import MemoryStore

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def make_record() -> RunRecord:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        return await get_record(store, "r")


async def describe(waits: list[WaitingCall], **changes: Any) -> str:
    run = msgspec.structs.replace(summarize_run(await make_record(), NOW), **{"updated_at": NOW, **changes})
    return "".join(piece.text for piece in describe_run(run, waits, NOW))


def wait(kind: Any, **fields: Any) -> WaitingCall:
    given: dict[str, Any] = {"reason": "Which room?", "topic": "signal:paid", "asked_at": NOW - 2 * MINUTE, **fields}
    return WaitingCall(run_id="r", call_id="c", step=1, tool="book", kind=kind, arguments={"room": 7}, **given)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (wait("approval"), "waits for approval of book(room=7), 2 min so far"),
        (wait("approval", expires_at=NOW + 5 * MINUTE),
         "waits for approval of book(room=7), 2 min so far, expires in 5 min"),
        (wait("question"), "waits for an answer to “Which room?”, 2 min so far"),
        (wait("result"), "waits for the result of book(room=7), 2 min so far"),
        (wait("signal"), "waits for the signal paid, 2 min so far"),
        (wait("child"), "waits for a child run of book, 2 min so far"),
        (wait("run", reason="other"), "waits for the end of other, 2 min so far"),
        (wait("timer"), "waits for a time, 2 min so far"),
        (wait("timer", expires_at=NOW + 3 * MINUTE), "sleeps for 3 min more"),
    ],
)  # fmt: skip
async def test_a_waiting_run_says_for_what_and_since_when(call: WaitingCall, text: str) -> None:
    assert await describe([call], status=RunStatus.WAITING) == text
    assert await describe([call, call], status=RunStatus.WAITING) == f"{text}, and 1 more call"
    assert await describe([call] * 3, status=RunStatus.WAITING) == f"{text}, and 2 more calls"


_ERROR = "ConnectionError: refused"
_LONG = "x" * 1_000


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": "waiting", "wake_at": NOW}, "ready for a worker"),
        ({"status": "waiting", "wake_at": NOW + MINUTE, "reason": "the time 12:01"}, "waits for the time 12:01"),
        ({"status": "waiting"}, "waits for a time"),
        ({"status": "waiting", "wake_on": ("x", "y")}, "waits for mail (x, y)"),
        ({"status": "waiting", "conversation": "k", "turns": 1}, "waits for the next message, after 1 turn"),
        ({"status": "waiting", "conversation": "k", "wake_on": (BUDGET_TOPIC,), "reason": "its budget"},
         "waits for its budget"),
        ({"status": "queued"}, "ready for a worker"),
        ({"status": "queued", "not_before": NOW + 5 * MINUTE}, "starts in 5 min"),
        ({"status": "interrupted", "not_before": NOW + 5 * MINUTE, "reason": "a deploy"},
         "resumes in 5 min, after: a deploy"),
        ({"status": "interrupted", "not_before": NOW + 5 * MINUTE, "reason": _ERROR, "retry_error": _ERROR},
         f"retries after {_ERROR} in 5 min"),
        ({"status": "interrupted", "not_before": NOW + 5 * MINUTE, "reason": _LONG, "retry_error": _LONG},
         f"retries after {_LONG[:99]}… in 5 min"),
        ({"status": "interrupted", "not_before": NOW + 5 * MINUTE, "reason": _LONG},
         f"resumes in 5 min, after: {_LONG[:159]}…"),
        ({"status": "interrupted", "not_before": NOW, "reason": "a deploy"}, "ready for a worker, after: a deploy"),
        ({"status": "interrupted", "owner": "w"}, "worker w died; ready for another worker"),
        ({"status": "running", "owner": "w", "steps": 2}, "step 3 · worker w"),
        ({"status": "running", "owner": "w", "phase": "edit"}, "step 1 of phase edit · worker w"),
        ({"status": "running", "owner": None}, "step 1 · worker ?"),
        ({"status": "running", "owner": "w", "updated_at": NOW - 10 * MINUTE}, "step 1 · worker w"),
        ({"status": "running", "owner": "w", "updated_at": NOW - 11 * MINUTE},
         "no progress for 11 min · step 1 · worker w"),
        ({"status": "running", "owner": "w", "retries": 1, "retry_error": _ERROR},
         f"step 1 · worker w · 1 retry, last after {_ERROR}"),
        ({"status": "running", "owner": "w", "retries": 2, "retry_error": _ERROR},
         f"step 1 · worker w · 2 retries, last after {_ERROR}"),
        ({"status": "running", "owner": "w", "retry_error": _ERROR, "next_retry_at": NOW + 5 * MINUTE},
         f"retries after {_ERROR} in 5 min · step 1"),
        ({"status": "running", "owner": "w", "retry_error": _LONG, "next_retry_at": NOW + 5 * MINUTE},
         f"retries after {_LONG[:99]}… in 5 min · step 1"),
        ({"status": "running", "owner": "w", "retry_error": _LONG, "retries": 1},
         f"step 1 · worker w · 1 retry, last after {_LONG[:59]}…"),
        ({"status": "running", "owner": "w", "phase": _LONG}, f"step 1 of phase {_LONG[:39]}… · worker w"),
        ({"status": "running", "owner": "w", "retry_error": _ERROR, "next_retry_at": NOW}, "step 1 · worker w"),
        ({"status": "running", "owner": "w", "cancel_requested": True}, "step 1 · worker w · cancel requested"),
        ({"status": "done", "steps": 1}, "finished after 1 step"),
        ({"status": "done", "expires_at": NOW}, "finished, kept until 01 Jan"),
        ({"status": "cancelled", "cancel_requested": True}, "cancelled"),
        ({"status": "parked"}, "needs a person"),
        ({"status": "parked", "reason": "poison"}, "poison"),
        ({"status": "failed", "reason": "ValueError: no"}, "ValueError: no"),
    ],
)  # fmt: skip
async def test_a_run_says_what_it_does_or_needs(changes: dict[str, Any], text: str) -> None:
    changes["status"] = RunStatus(changes["status"])
    assert await describe([], **changes) == text


async def test_names_and_calls_are_shown_as_code() -> None:
    run = summarize_run(await make_record(), NOW)

    def find_code(waits: list[WaitingCall], **changes: Any) -> list[str]:
        pieces = describe_run(msgspec.structs.replace(run, **changes), waits, NOW)
        return [piece.text for piece in pieces if piece.is_code]

    kinds = ("approval", "result", "signal", "child", "run", "question", "timer")
    shown = [find_code([wait(kind)], status=RunStatus.WAITING) for kind in kinds]
    assert shown == [["book(room=7)"], ["book(room=7)"], ["paid"], ["book"], ["Which room?"], [], []]
    assert find_code([], status=RunStatus.RUNNING, owner="w") == ["w"]
    assert find_code([], status=RunStatus.INTERRUPTED, owner="w") == ["w"]
    assert describe_status(RunStatus.DONE, "any") == ""


async def test_calls_are_not_what_a_run_over_its_budget_waits_for() -> None:
    shown = await describe([wait("signal")], status=RunStatus.WAITING, wake_on=(BUDGET_TOPIC,), reason="its budget")
    assert shown == "waits for its budget"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "waiting", "reason": "the time 12:01"}, "a time"),
        ({"status": "waiting", "reason": "approval of pay (c3), approval of pay (c4)"}, "approval of pay"),
        ({"status": "waiting"}, "mail"),
        ({"status": "running"}, "no progress"),
        ({"status": "interrupted", "owner": "w"}, "its worker died"),
        ({"status": "interrupted"}, ""),
        ({"status": "parked", "reason": "in doubt: pay (c1)", "owner": "w"}, "in doubt"),
    ],
)
async def test_runs_with_the_same_cause_have_the_same_reason(changes: dict[str, Any], reason: str) -> None:
    changes["status"] = RunStatus(changes["status"])
    assert describe_reason(msgspec.structs.replace(summarize_run(await make_record()), **changes)) == reason


async def test_the_times_of_a_run_add_up() -> None:
    made = msgspec.structs.replace(await make_record(), created_at=NOW - 60 * MINUTE, updated_at=NOW - 10 * MINUTE)
    running = msgspec.structs.replace(made, status=RunStatus.RUNNING, owner="w", owner_alive=True)
    assert measure_times(running, 5 * MINUTE, NOW) == (60 * MINUTE, 15 * MINUTE, 45 * MINUTE)
    lost = msgspec.structs.replace(running, owner_alive=False)
    assert measure_times(lost, 5 * MINUTE, NOW) == (60 * MINUTE, 5 * MINUTE, 55 * MINUTE)
    waiting = msgspec.structs.replace(made, status=RunStatus.WAITING, owner_alive=True)
    assert measure_times(waiting, 5 * MINUTE, NOW) == (60 * MINUTE, 5 * MINUTE, 55 * MINUTE)
    ended = msgspec.structs.replace(made, status=RunStatus.DONE)
    assert measure_times(ended, 5 * MINUTE, NOW) == (50 * MINUTE, 5 * MINUTE, 45 * MINUTE)
    assert measure_times(ended, 70 * MINUTE, NOW) == (70 * MINUTE, 70 * MINUTE, timedelta(0)), "clocks differ"
    ahead = msgspec.structs.replace(running, updated_at=NOW + MINUTE)
    assert measure_times(ahead, 5 * MINUTE, NOW).worked == 5 * MINUTE


@pytest.mark.parametrize(
    ("total", "worked", "shown"),
    [
        (3230.4, 33.3, "53 min 50 s total = 33 s worked + 53 min 17 s waited"),
        (10, 9.96, "10 s total = 10 s worked + 0.0 s waited"),
        (10, 9.44, "10 s total = 9.0 s worked + 1.0 s waited"),
        (9.96, 0.84, "10 s total = 0.8 s worked + 9.2 s waited"),
        (1.04, 1.04, "1.0 s total = 1.0 s worked + 0.0 s waited"),
    ],
)
async def test_times_are_rounded_so_that_they_add_up(total: float, worked: float, shown: str) -> None:
    times = {"total": timedelta(seconds=total), "elapsed": timedelta(seconds=worked)}
    run: RunSummary = msgspec.structs.replace(summarize_run(await make_record()), **times)
    assert describe_times(run) == shown


async def test_workers_that_live_come_first_and_then_the_busiest() -> None:
    record = msgspec.structs.replace(await make_record(), status=RunStatus.RUNNING)
    owners = [
        ("w-1", True),
        ("w-2", True),
        ("w-2", True),
        ("dead", False),
        ("dead", False),
        ("dead", False),
        ("w-0", True),
    ]
    running = [msgspec.structs.replace(record, owner=owner, owner_alive=alive) for owner, alive in owners]
    joined = join_workers([], running)
    assert [(worker.worker_id, worker.alive, len(worker.runs)) for worker in joined] == [
        ("w-2", True, 2), ("w-0", True, 1), ("w-1", True, 1), ("dead", False, 3),
    ]  # fmt: skip


def test_rates_need_time_to_pass() -> None:
    now = Activity(at=NOW, counts=[], workers=[], stuck=[], is_partial=False, steps={})
    assert compare_activity(now, now) is None
    later = msgspec.structs.replace(now, at=NOW + 2 * MINUTE, steps={"r": 4, "new": 9})
    rates = compare_activity(msgspec.structs.replace(now, steps={"r": 2, "gone": 7}), later)
    assert rates is not None
    assert (rates.created, rates.ended, rates.steps) == (0, 0, 1), "a run that is new may have begun long ago"
    statuses = (RunStatus.DONE, RunStatus.FAILED, RunStatus.WAITING)
    counts = [RunCount(agent_name="a", status=status, count=4) for status in statuses]
    rates = compare_activity(now, msgspec.structs.replace(later, counts=counts))
    assert rates is not None
    assert (rates.created, rates.ended) == (6, 4)


@pytest.mark.parametrize(
    ("show", "given", "text"),
    [
        (format_age, (timedelta(seconds=4.9),), "now"),
        (format_age, (timedelta(seconds=-0.9),), "now"),
        (format_age, (timedelta(seconds=5),), "5 s ago"),
        (format_age, (timedelta(seconds=-1),), "in 1 s"),
        (format_age, (timedelta(seconds=9.6),), "10 s ago"),
        (format_age, (timedelta(seconds=89),), "89 s ago"),
        (format_age, (timedelta(seconds=90),), "2 min ago"),
        (format_age, (timedelta(minutes=5),), "5 min ago"),
        (format_age, (timedelta(minutes=-5),), "in 5 min"),
        (format_duration, (timedelta(seconds=0.099),), "99 ms"),
        (format_duration, (timedelta(seconds=-1),), "0 ms"),
        (format_duration, (timedelta(seconds=0.1),), "0.1 s"),
        (format_duration, (timedelta(seconds=9.9),), "9.9 s"),
        (format_duration, (timedelta(seconds=10),), "10 s"),
        (format_duration, (timedelta(seconds=10.4),), "10 s"),
        (format_duration, (timedelta(seconds=89),), "89 s"),
        (format_duration, (timedelta(seconds=90),), "2 min"),
        (format_duration, (timedelta(hours=35.5),), "36 h"),
        (format_duration, (timedelta(days=1.5),), "2 d"),
        (format_duration, (timedelta(hours=1),), "1 h"),
        (format_duration, (timedelta(hours=5, minutes=59),), "5 h 59 min"),
        (format_duration, (timedelta(hours=6, minutes=20),), "6 h"),
        (format_duration, (timedelta(minutes=59),), "59 min"),
        (format_duration, (timedelta(days=1, hours=11),), "35 h"),
        (format_span, (timedelta(seconds=9.94),), "9.9 s"),
        (format_span, (timedelta(seconds=10),), "10 s"),
        (format_span, (timedelta(seconds=60),), "1 min"),
        (format_span, (timedelta(hours=3, minutes=20),), "3 h 20 min"),
        (format_span, (timedelta(days=2, hours=5),), "2 d 5 h"),
        (format_amount, (0, "cost_usd",), "$0.00"),
        (format_amount, (0.05, "cost_usd",), "$0.0500"),
        (format_amount, (0.1, "cost_usd",), "$0.10"),
        (format_amount, (12_000, "tokens",), "12,000 tokens"),
        (format_amount, (1, "runs",), "1 run"),
        (format_amount, (300, "seconds",), "5 min"),
        (format_cost, (0,), "–"),
        (format_cost, (0.00123,), "$0.0012"),
        (format_cost, (0.1,), "$0.10"),
        (format_cost, (1_000,), "$1,000.00"),
        (format_number, (12_345,), "12,345"),
        (format_size, (999,), "999 B"),
        (format_size, (1_000,), "1.0 kB"),
        (format_size, (10_000,), "10 kB"),
        (format_size, (10_500,), "10 kB"),
        (format_size, (999 * 10**9,), "999 GB"),
        (format_size, (4 * 10**12,), "4.0 TB"),
        (format_value, ("text",), "text"),
        (format_value, ([1],), "[\n  1\n]"),
        (cut_text, ("a b", 3), "a b"),
        (cut_text, ("a  b c", 3), "a…"),
        (cut_text, ("a\nbcd", 4), "a b…"),
        (cut_text, ("a" + 10 * " " + "b", 4), "a"),
        (format_count, (1, "retry", "retries",), "1 retry"),
        (format_count, (2, "retry", "retries",), "2 retries"),
        (format_call, ("pay", [1],), "pay([1])"),
        (format_call, ("pay", {"text": "x" * 90},), 'pay(text="' + "x" * 78 + "…)"),
        (format_arguments, ({"text": "x" * 70},), 'text="' + "x" * 58 + "…"),
        (format_arguments, ({"a": 1, "b": 2, "c": 3, "d": 4}, 5), "a=1, b=2,…"),
        (format_whole_call, ("pay", {"text": "x" * 93},), 'pay(text="' + "x" * 93 + '")'),
        (format_whole_call, ("pay", {"text": "x" * 94},), 'pay({\n  "text": "' + "x" * 94 + '"\n})'),
    ],
)  # fmt: skip
def test_figures_are_read_by_people(show: Callable[..., str], given: tuple[Any, ...], text: str) -> None:
    assert show(*given) == text
