"""Causes of a stop, pauses, signals and intents, and what a source has to state."""

import asyncio
import functools
import itertools
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.agents.agent import Agent
from holdfast.core.errors import RunCancelled, RunKilled, Shutdown
from holdfast.core.execution.native_loop import NATIVE_LOOP, get_loop
from holdfast.core.execution.saving import IntentTimer
from holdfast.core.execution.stop import StopCause, StopState, can_install_handlers
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.run.state import RunState
from holdfast.testing.manual_clock import ManualClock

CAUSES = [StopCause.CALL_FAILED, StopCause.CALL_INTERRUPTED, StopCause.STOPPED]


def make_stop_state() -> StopState:
    return StopState("r", RunState(), SYSTEM_CLOCK)


def test_a_run_that_continues_has_no_cause_and_no_error() -> None:
    state = make_stop_state()
    assert (state.cause, state.error, state.is_stopped) == (StopCause.NONE, None, False)


@pytest.mark.parametrize(("first", "second"), [*itertools.product(CAUSES, CAUSES)])
def test_a_stronger_cause_replaces_a_weaker_one_and_the_first_of_equal_ones_stands(
    first: StopCause, second: StopCause
) -> None:
    state, one, two = make_stop_state(), ValueError("first"), ValueError("second")
    assert state.record(first, one)
    assert state.record(second, two) is (second > first)
    assert (state.cause, state.error) == ((second, two) if second > first else (first, one))
    assert state.is_stopped is (StopCause.STOPPED in (first, second))


class MinimalSource:
    name = "minimal"

    async def build(self, info: RunInfo) -> Agent:
        raise NotImplementedError


class TieredSource(MinimalSource):
    model_tier = "fast"


def test_a_source_needs_a_name_and_build_only() -> None:
    assert AgentDetails.from_source(MinimalSource()) == AgentDetails()
    assert get_loop(MinimalSource()) is NATIVE_LOOP
    info = RunInfo.create(MinimalSource(), "go", caller_id="c", labels={"team": "a"})
    assert (info.agent_name, info.agent_id, info.model_tier) == ("minimal", "", "")
    assert (info.prompt, info.caller_id, info.labels) == ("go", "c", {"team": "a"})


def test_a_source_may_state_some_of_its_details() -> None:
    assert RunInfo.create(TieredSource(), "go", run_id="r").model_tier == "fast"


# -- undo, and the error of an attempt --------------------------------------------------------------------------------


def test_a_run_that_is_undone_is_stopped_by_an_interruption_only() -> None:
    state, cancelled, interrupted = make_stop_state(), RunCancelled("stop"), Shutdown("down")
    assert state.record(StopCause.STOPPED, cancelled)
    state.begin_undo()
    assert (state.is_undoing, state.undo_error) == (True, cancelled)
    assert (state.cause, state.error, state.is_stopping, state.is_stopped) == (StopCause.NONE, None, False, False)
    assert not state.record(StopCause.STOPPED, RunCancelled("again"))
    state.begin_undo(ValueError("later"))
    assert state.undo_error is cancelled, "the first error stands"
    assert state.record(StopCause.STOPPED, interrupted)
    assert (state.error, state.is_stopping, state.is_stopped) == (interrupted, True, True)
    fresh = make_stop_state()
    fresh.begin_undo(cancelled)
    assert fresh.undo_error is cancelled


def test_the_error_of_a_call_interrupts_or_fails_the_run() -> None:
    for error, cause in ((Shutdown("down"), StopCause.CALL_INTERRUPTED), (ValueError("x"), StopCause.CALL_FAILED)):
        state = make_stop_state()
        assert state.is_resumable_after(error) is (cause is StopCause.CALL_INTERRUPTED)
        state.record_call_error(error)
        assert (state.cause, state.error, state.is_stopping, state.is_stopped) == (cause, error, True, False)
    state = make_stop_state()
    assert state.record_interruption(ValueError("x")) is False
    assert state.cause is StopCause.NONE


def test_a_run_stops_between_two_steps() -> None:
    state = make_stop_state()
    state.raise_if_stopped()
    state.record(StopCause.CALL_FAILED, ValueError("x"))
    state.raise_if_stopped()
    state.drain()
    with pytest.raises(Shutdown, match="run r stopped for a shutdown after step 0") as raised:
        state.raise_if_stopped()
    assert raised.value.step == 0
    state.record(StopCause.STOPPED, RunCancelled("stop"))
    with pytest.raises(RunCancelled, match="stop"):
        state.raise_if_stopped()


async def end_task(end: BaseException | None) -> "asyncio.Task[None]":
    """Return a task that has returned, or ended with this exception."""

    async def work() -> None:
        if end is not None:
            raise end

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    return task


RAISED, INTERRUPTED, STOP, CANCEL = ValueError("raised"), Shutdown("down"), RunKilled("stop"), asyncio.CancelledError()


@pytest.mark.parametrize(
    ("cause", "error", "end", "expected"),
    [
        (None, None, None, None),
        (None, None, RAISED, RAISED),
        (StopCause.STOPPED, STOP, None, STOP),
        (StopCause.STOPPED, STOP, RAISED, STOP),
        (StopCause.STOPPED, STOP, CANCEL, STOP),
        (StopCause.STOPPED, INTERRUPTED, None, None),
        (StopCause.STOPPED, INTERRUPTED, RAISED, INTERRUPTED),
        (StopCause.STOPPED, INTERRUPTED, CANCEL, INTERRUPTED),
        (StopCause.CALL_INTERRUPTED, INTERRUPTED, None, None),
        (StopCause.CALL_INTERRUPTED, INTERRUPTED, RAISED, INTERRUPTED),
        (StopCause.CALL_INTERRUPTED, INTERRUPTED, CANCEL, INTERRUPTED),
        (StopCause.CALL_FAILED, STOP, RAISED, RAISED),
        (StopCause.CALL_FAILED, STOP, None, None),
    ],
)
async def test_the_error_of_an_attempt(
    cause: StopCause | None, error: BaseException | None, end: BaseException | None, expected: BaseException | None
) -> None:
    state = make_stop_state()
    if cause is not None and error is not None:
        state.record(cause, error)
    assert state.get_error(await end_task(end)) is expected


async def test_an_interruption_that_the_task_raises_stands_for_that_of_a_call() -> None:
    state, later = make_stop_state(), Shutdown("later")
    state.record(StopCause.CALL_INTERRUPTED, INTERRUPTED)
    assert state.get_error(await end_task(later)) is later


async def test_a_task_that_cancels_itself_has_cancelled_the_run() -> None:
    state = make_stop_state()
    assert isinstance(state.get_error(await end_task(CANCEL)), RunCancelled)
    state.begin_undo(STOP)
    assert state.get_error(await end_task(CANCEL)) is STOP
    assert state.get_error(await end_task(RAISED)) is RAISED


async def test_a_shutdown_ends_pauses_when_nothing_else_is_in_progress() -> None:
    clock = ManualClock()
    state = StopState("r", RunState(), clock)
    state.calls_in_progress = 2
    pause = asyncio.create_task(state.pause(timedelta(minutes=1)))
    await asyncio.sleep(0)
    state.drain()
    await asyncio.sleep(0)
    assert not pause.done(), "another call is in progress"
    state.end_call()
    with pytest.raises(Shutdown):
        await pause
    assert clock.waiting == 0
    with pytest.raises(Shutdown):
        await state.pause(timedelta(minutes=1))


async def test_a_pause_ends_with_its_time() -> None:
    clock = ManualClock()
    state = StopState("r", RunState(), clock)
    pause = asyncio.create_task(state.pause(timedelta(minutes=1)))
    await clock.advance(timedelta(seconds=59))
    assert not pause.done()
    state.calls_in_progress = 1
    state.end_call()
    await asyncio.sleep(0)
    assert not pause.done(), "no shutdown"
    await clock.advance(timedelta(seconds=1))
    await pause
    assert state.calls_in_progress == 0


# -- signals ----------------------------------------------------------------------------------------------------------


def handle(number: int, frame: object) -> None:
    """A handler of the host."""


@pytest.mark.parametrize(
    ("term", "interrupt", "expected"),
    [
        (signal.SIG_DFL, signal.default_int_handler, True),
        (signal.SIG_DFL, signal.SIG_IGN, True),
        (signal.SIG_DFL, signal.SIG_DFL, False),
        (signal.SIG_DFL, handle, False),
        (signal.SIG_DFL, functools.partial(handle), False),
        (signal.SIG_IGN, signal.default_int_handler, False),
        (handle, signal.default_int_handler, False),
    ],
)
def test_signals_that_the_host_handles_are_left_to_it(term: Any, interrupt: Any, expected: bool) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        signal.signal(signal.SIGTERM, term)
        signal.signal(signal.SIGINT, interrupt)
        assert can_install_handlers() is expected
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_handler_of_asyncio_may_be_replaced_and_a_thread_handles_nothing() -> None:
    async def check() -> bool:
        return can_install_handlers()

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert asyncio.run(check()) is True
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(can_install_handlers).result() is False
    finally:
        signal.signal(signal.SIGTERM, before)


# -- intents ----------------------------------------------------------------------------------------------------------


class Intent:
    """Remembers when it was saved, in milliseconds."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.saved: list[int] = []

    def save_intent(self) -> None:
        self.saved.append(round(self._clock.monotonic() * 1000))


async def test_an_intent_is_saved_after_its_delay_unless_it_is_cancelled() -> None:
    clock, millisecond = ManualClock(), timedelta(milliseconds=1)
    timer = IntentTimer(clock)
    first, second, cancelled = (Intent(clock) for _ in range(3))
    timer.schedule(first)  # type: ignore[arg-type]
    timer.schedule(cancelled)  # type: ignore[arg-type]
    await clock.advance(millisecond)
    timer.schedule(second)  # type: ignore[arg-type]
    timer.cancel(cancelled)  # type: ignore[arg-type]
    timer.cancel(cancelled)  # type: ignore[arg-type]
    assert clock.waiting == 1, "one timer for all"
    await clock.advance(2 * millisecond)
    assert (first.saved, second.saved, cancelled.saved) == ([2], [3], [])
    assert clock.waiting == 0
    timer.schedule(first)  # type: ignore[arg-type]
    timer.clear()
    assert clock.waiting == 0
    timer.clear()
    timer.schedule(second)  # type: ignore[arg-type]
    await clock.advance(2 * millisecond)
    assert (first.saved, second.saved) == ([2], [3, 5])
