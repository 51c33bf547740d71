"""Causes of a stop, and what a source has to state."""

import itertools

import pytest

from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.agents.agent import Agent
from holdfast.core.execution.native_loop import NATIVE_LOOP, get_loop
from holdfast.core.execution.stop import StopCause, StopState
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.run.state import RunState

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
