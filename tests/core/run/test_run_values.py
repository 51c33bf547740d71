"""The values that a run consists of: waits, decisions, tokens, the calls of a step, its state, its times and errors."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import (
    RunCancelled,
    RunInterrupted,
    RunLost,
    RunParked,
    Shutdown,
    ToolTimeout,
    format_error,
    format_trace,
)
from holdfast.core.execution.calling.waits import format_expiry
from holdfast.core.run.run_events import ItemProgress
from holdfast.core.run.state import NO_CALLS, History, RunState, StepCalls, StepEnd, StepTimer, StepTimes
from holdfast.core.run.status import AttemptEnd, classify_error
from holdfast.core.run.waiting import (
    Approve,
    BudgetExhausted,
    CallToken,
    Decision,
    Deny,
    OutageWait,
    RateLimitWait,
    RunWaiting,
    Suspend,
    Value,
    WaitingCall,
    describe_decision,
    describe_waits,
    format_denial,
    hash_token,
    make_secret,
    read_signed_step,
)
from holdfast.testing.manual_clock import ManualClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DENIED = Decision(kind="deny", comment="no", by="ann", via="slack", at=NOW)


def make_wait(kind: Any = "approval", call_id: str = "c", **fields: Any) -> WaitingCall:
    return WaitingCall(run_id="r", call_id=call_id, step=3, tool="pay", kind=kind, asked_at=NOW, **fields)


# -- tokens -----------------------------------------------------------------------------------------------------------


def test_a_secret_is_read_only_with_its_key_and_run() -> None:
    secret = make_secret("w", "r", 7)
    assert read_signed_step("w", "r", secret) == 7
    assert len(secret.rpartition(".")[2]) == 32
    for key, run_id, wrong in (
        ("v", "r", secret), ("w", "s", secret), ("w", "r", secret[:-1]), ("w", "r", f"8{secret[1:]}"), ("w", "r", ""),
        ("w", "r", "x"), ("w", "r", f".{secret.rpartition('.')[2]}"), ("w", "r", f"{secret[:-1]}é"),
    ):  # fmt: skip
        assert read_signed_step(key, run_id, wrong) is None


def test_a_token_knows_its_secret() -> None:
    token = CallToken.create(7, "c", "secret")
    assert (token.call_id, token.topic) == ("c", "answer:result:7:c")
    assert (token.is_of("secret"), token.is_of("other")) == (True, False)
    assert "secret" not in str(token)
    assert hash_token("") == ""
    assert len(hash_token("\ud83d")) == 64


# -- waiting calls ----------------------------------------------------------------------------------------------------


def test_a_wait_is_named_by_its_step_kind_call_and_arguments() -> None:
    wait = make_wait(arguments={"a": 1, "b": 2})
    assert wait.id == "3:approval:c"
    assert len(wait.digest) == 16
    same = make_wait(arguments={"b": 2, "a": 1})
    others = (make_wait(arguments={"a": 2}), make_wait("question", arguments={"a": 1, "b": 2}))
    assert wait.digest == same.digest
    assert wait.digest not in {each.digest for each in others}


def test_the_topics_of_a_wait() -> None:
    assert make_wait("timer").topics == ()
    assert make_wait("timer", other_topics=("x",)).topics == ()
    assert make_wait(topic="t", other_topics=("x", "y")).topics == ("t", "x", "y")


@pytest.mark.parametrize(
    ("kind", "fields", "needs_answer", "is_recorded"),
    [
        ("approval", {}, True, True),
        ("question", {}, True, True),
        ("result", {}, True, True),
        ("result", {"has_token": True}, False, True),
        ("signal", {}, False, False),
        ("timer", {}, False, False),
        ("child", {}, False, False),
        ("run", {}, False, False),
    ],
)
def test_who_ends_a_wait_and_whether_it_is_recorded(
    kind: str, fields: dict[str, Any], needs_answer: bool, is_recorded: bool
) -> None:
    wait = make_wait(kind, **fields)
    assert (wait.needs_answer, wait.is_recorded) == (needs_answer, is_recorded)
    assert wait.recorded_decision is None
    decided = msgspec.structs.replace(wait, decision=Decision(kind="value", value=5, by="ann"))
    assert decided.recorded_decision == (Decision(kind="value", by="ann") if is_recorded else None)
    approved = msgspec.structs.replace(decided, approval=DENIED)
    assert approved.recorded_decision == DENIED


def test_the_texts_of_waits_and_decisions() -> None:
    waits = {
        "approval": "approval of pay (c)",
        "question": "an answer: why?",
        "signal": "the signal go",
        "timer": "the time 2030-01-01 00:00:00 UTC",
        "result": "the result of pay (c)",
        "child": "a child run of pay (why?)",
        "run": "the end of why?",
    }
    calls = tuple(make_wait(kind, reason="why?", topic="signal:go", expires_at=NOW) for kind in waits)
    assert describe_waits(calls) == ", ".join(waits.values())
    assert describe_waits(()) == "mail"
    assert describe_decision(DENIED) == "denied by ann via slack: no"
    assert describe_decision(Approve(arguments={"a": 1}).to_decision("", "")) == 'approved with {"a":1}'
    assert describe_decision(Approve(arguments={}, comment="ok").to_decision("al", "")) == "approved with {} by al: ok"
    assert describe_decision(Value((1,)).to_decision("", "http")) == "answered via http"
    assert describe_decision(Decision(kind="expire")) == "expired"
    assert format_denial(Deny(reason="too much").to_decision("", "")) == "The call was denied: too much."
    assert format_denial(Deny().to_decision("", "")) == "The call was denied."
    assert Value((1,)).to_decision("", "").value == [1]
    assert "the call waits (timer)" in str(Suspend("timer"))
    assert "the call waits (lunch)" in str(Suspend("timer", reason="lunch"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1 second"), (0.4, "1 second"), (1, "1 second"), (2, "2 seconds"), (59, "59 seconds"), (60, "1 minute"),
        (90, "90 seconds"), (120, "2 minutes"), (3600, "1 hour"), (5400, "90 minutes"), (7200, "2 hours"),
        (86400, "1 day"), (172800, "2 days"), (90000, "25 hours"),
    ],
)  # fmt: skip
def test_an_expiry_names_the_time_in_the_largest_unit(seconds: float, text: str) -> None:
    assert format_expiry(make_wait(expires_at=NOW + timedelta(seconds=seconds))) == f"No answer within {text}."


def test_an_expiry_without_a_time() -> None:
    assert format_expiry(make_wait()) == "No answer."


def test_a_run_wakes_at_the_first_time_and_on_any_topic() -> None:
    timer, signal = make_wait("timer", expires_at=NOW + HOUR), make_wait("signal", topic="s", other_topics=("b",))
    waiting = RunWaiting("r", (signal, timer, make_wait("timer", expires_at=NOW)))
    assert (waiting.wake_at, waiting.wake_on, waiting.only_for_time) == (NOW, ("b", "s"), False)
    assert str(waiting) == f"run r waits for {waiting.reason}"
    assert RunWaiting("r", (timer, make_wait("run"), make_wait("child", timed=True))).only_for_time
    assert not RunWaiting("r", (timer, make_wait("child"))).only_for_time
    assert RunWaiting("r", (signal,)).wake_at is None
    limited = RateLimitWait("r", "", NOW)
    assert (limited.wake_at, limited.wake_on, limited.only_for_time) == (NOW, (), True)
    assert limited.reason == "the limits of its model until 2030-01-01 00:00:00 UTC"
    assert RateLimitWait("r", "gpt", NOW).reason.startswith("the limits of gpt until")
    broke = BudgetExhausted("r", "spent", NOW)
    assert (broke.reason, broke.wake_at, broke.wake_on, broke.only_for_time) == ("spent", NOW, ("budget",), False)
    away = OutageWait("r", ValueError("away"), NOW)
    assert (away.reason, away.wake_at, away.wake_on) == ("away", NOW, ())


# -- the calls of a step ----------------------------------------------------------------------------------------------


def test_the_calls_of_a_step_are_replaced_one_by_one() -> None:
    token = CallToken.create(3, "a", "s")
    calls = StepCalls(not_started=("a", "b"), in_doubt=("a", "b")).add_token(token)
    assert calls.add_token(token) is calls
    assert (calls.has_token("a"), calls.has_token("b")) == (True, False)
    calls = calls.set_wait(make_wait(call_id="a")).set_wait(make_wait(call_id="b", decision=DENIED))
    assert [wait.call_id for wait in calls.undecided] == ["a"]
    assert calls.decisions == {"b": DENIED}
    assert list(calls.remove_wait("a").waits) == ["b"]
    assert calls.mark_started("a").not_started == ("b",)
    without = calls.remove_call("a")
    assert (list(without.waits), without.not_started, without.in_doubt, without.tokens) == (["b"], ("b",), ("b",), ())
    assert without.remove_call("b") is NO_CALLS


def test_a_finished_step_keeps_its_decisions_and_traces() -> None:
    state = RunState(calls=StepCalls().set_wait(make_wait(decision=DENIED)))
    state.history.extend(["reply", "result"])
    state.record_result("c", "result", ValueError("broken"))
    state.finish_step(StepTimes(5))
    assert (state.steps, state.results, state.calls, state.traces) == (1, {}, NO_CALLS, {})
    assert state.history.finished_count == 2
    assert state.step_end.decisions == {"c": DENIED}
    assert state.step_end.times == StepTimes(5)
    assert "broken" in state.step_end.traces["c"]


def test_a_call_that_is_a_step_is_finished_and_reopened() -> None:
    before = StepCalls().set_wait(make_wait(call_id="c", decision=DENIED)).set_wait(make_wait(call_id="d"))
    state = RunState(calls=before, results={"c": "early"})
    state.history.append("reply")
    end, result = state.step_end, object()
    state.finish_call("c", result, StepTimes(5), ValueError("broken"))
    assert (state.steps, state.results, list(state.calls.waits)) == (1, {}, ["d"])
    assert (state.history[-1], state.history.finished_count) == (result, 2)
    assert state.step_end.decisions == {"c": DENIED}
    assert list(state.step_end.traces) == ["c"]
    state.reopen_call("c", result, before, end)
    assert (state.steps, list(state.history), state.history.finished_count) == (0, ["reply"], 1)
    assert state.calls.waits == before.waits
    assert state.step_end is end
    later = object()
    state.finish_call("c", result)
    state.history.append(later)
    state.reopen_call("x", later, NO_CALLS, StepEnd())
    assert (list(state.history), state.history.finished_count) == (["reply", result], 2), "it was not finished"


def test_a_phase_and_a_restart_begin_with_an_empty_conversation() -> None:
    state = RunState(steps=4, elapsed=HOUR, phase="plan", undo_on_cancel=True, results={"c": 1})
    state.calls = StepCalls(in_doubt=("c",))
    state.history.append("old")
    state.finish_phase("plan", "done")
    assert (list(state.history), state.results, state.calls, state.phase) == ([], {}, NO_CALLS, "")
    assert state.undo_on_cancel is False
    assert (state.phases[0].name, state.phases[0].output, state.phases[0].steps) == ("plan", "done", 4)
    state.steps, state.elapsed = 6, 3 * HOUR
    assert (state.phase_steps, state.phase_elapsed, state.turn_steps, state.turn_elapsed) == (2, 2 * HOUR, 6, 3 * HOUR)
    state.undo_on_cancel, state.calls, state.results = True, StepCalls(in_doubt=("c",)), {"c": 1}
    state.restart(["new"])
    assert (list(state.history), state.history.rewrites, state.history.finished_count) == (["new"], 1, 0)
    assert (state.calls, state.results, state.undo_on_cancel, state.steps) == (NO_CALLS, {}, False, 6)
    fresh = RunState(steps=2, elapsed=HOUR)
    assert (fresh.phase_steps, fresh.phase_elapsed) == (2, HOUR)


def test_a_history_counts_its_messages_and_rewrites() -> None:
    first, second = object(), object()
    history = History([first, second, first])
    assert (history.finished_count, history.rewrites, history.rewritten_count, history.turn_start) == (3, 0, 0, 0)
    assert history.remove(first) == 2, "the last one"
    history.rewrite(["short"])
    assert (history.finished_count, history.rewrites, history.rewritten_count, history.turn_start) == (1, 1, 1, 1)
    assert (len(history), history[0], history[:], repr(history)) == (
        1, "short", ["short"], "History(1 messages, 1 rewrites)",
    )  # fmt: skip


async def test_a_step_is_measured_from_its_question_to_its_end() -> None:
    clock = ManualClock()
    timer = StepTimer(clock)
    assert timer.end() is None
    timer.begin()
    await clock.advance(timedelta(seconds=1))
    assert timer.reply(), "a reply that took long"
    assert not timer.reply(), "once"
    await clock.advance(timedelta(seconds=2))
    started = clock.monotonic()
    await clock.advance(timedelta(seconds=3))
    timer.add_call("c", started)
    await clock.advance(timedelta(seconds=4))
    times = timer.end()
    assert times is not None
    assert (times.took, times.model) == (10_000, 1_000)
    assert [(call.call_id, call.start, call.end) for call in times.calls] == [("c", 3_000, 6_000)]
    assert timer.end() is None
    for milliseconds, is_costly in ((99, False), (100, True)):
        clock = ManualClock()
        timer = StepTimer(clock)
        timer.begin()
        await clock.advance(timedelta(milliseconds=milliseconds))
        assert timer.reply() is is_costly
        assert timer.end() == StepTimes(milliseconds, milliseconds)
    assert not timer.reply(), "an earlier process has recorded it"
    await clock.advance(timedelta(milliseconds=10))
    assert timer.end() == StepTimes(10, 0)
    timer.begin()
    await clock.advance(timedelta(milliseconds=10))
    assert timer.end() == StepTimes(10, 10), "a step without a reply"
    timer.add_call("c", 0.0)
    assert timer.end() is None
    timer.begin()
    assert timer.end() == StepTimes(0, 0), "calls outside of a step are not measured"


# -- errors -----------------------------------------------------------------------------------------------------------


class HostStops(Exception):
    """How a host announces a shutdown."""


def caused_by(cause: BaseException) -> Exception:
    error = ValueError("x")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, AttemptEnd.DONE),
        (RunLost("x"), AttemptEnd.LOST),
        (RunWaiting("r", ()), AttemptEnd.WAITING),
        (RunParked("x"), AttemptEnd.PARKED),
        (RunInterrupted("x"), AttemptEnd.INTERRUPTED),
        (KeyboardInterrupt(), AttemptEnd.INTERRUPTED),
        (SystemExit(), AttemptEnd.INTERRUPTED),
        (HostStops(), AttemptEnd.INTERRUPTED),
        (caused_by(caused_by(HostStops())), AttemptEnd.INTERRUPTED),
        (caused_by(Shutdown()), AttemptEnd.INTERRUPTED),
        (ExceptionGroup("g", [ValueError(), caused_by(Shutdown())]), AttemptEnd.INTERRUPTED),
        (caused_by(RunInterrupted("x")), AttemptEnd.FAILED),
        (ExceptionGroup("g", [ValueError()]), AttemptEnd.FAILED),
        (RunCancelled("x"), AttemptEnd.CANCELLED),
        (asyncio.CancelledError(), AttemptEnd.CANCELLED),
        (ValueError(), AttemptEnd.FAILED),
    ],
    ids=repr,
)
def test_how_an_attempt_ends_with_an_error(error: BaseException | None, end: AttemptEnd) -> None:
    assert classify_error(error, (HostStops,)) is end
    assert end.is_terminal == (end in ("done", "failed", "cancelled"))


def test_causes_that_form_a_circle_end() -> None:
    one, two = ValueError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert classify_error(one) is AttemptEnd.FAILED


def test_the_texts_of_errors() -> None:
    timeouts = {
        "It was cancelled.": {"may_be_running": False},
        "the work may still be running and may still take effect.": {"may_be_running": True, "effect_unknown": True},
        "it may or may not have taken effect. Check before you call it again.": {
            "may_be_running": False, "effect_unknown": True,
        },
    }  # fmt: skip
    for text, options in timeouts.items():
        shown = str(ToolTimeout("pay", timedelta(seconds=1.5), **options))
        assert shown.startswith("tool pay did not finish within 1.5 seconds. ")
        assert shown.endswith(text)
    assert (str(RunParked("size")), RunParked("size").message) == ("parked, size", "size")
    assert RunParked("size", "too large").message == "size: too large"
    assert str(ItemProgress(name="rows", done=1, total=2)) == "rows 1 of 2"
    assert str(ItemProgress(done=2, total=2, failed=1)) == "2 of 2, 1 failed"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def recurse(levels: int) -> None:
    if not levels:
        raise ValueError("deep \ud83d")
    if levels % 2:
        recurse(levels - 1)
    else:
        recurse(levels - 1)  # another line: equal ones are shown once


def test_an_error_without_a_text_is_still_formatted() -> None:
    assert format_error(Unprintable()) == "Unprintable: (its text could not be made)"
    assert format_error(ValueError("\ud83d")) == "ValueError: ?"
    assert format_trace(Unprintable()).startswith("tests.core.run.test_run_values.Unprintable")


def test_a_traceback_is_its_last_frames_and_characters() -> None:
    with pytest.raises(ValueError, match="deep") as raised:
        recurse(20)
    trace = format_trace(raised.value)
    assert trace.startswith("Traceback (most recent call last):")
    assert trace.endswith("ValueError: deep ?")
    assert trace.count(", in recurse") == 12
    assert len(format_trace(ValueError("x" * 10_000)) + "\n") == 4000
