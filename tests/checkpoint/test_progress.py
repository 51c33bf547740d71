"""Every state of a run survives its stored form."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.codec import decode, encode, make_state
from holdfast.checkpoint.progress import Progress
from holdfast.core.run.messages import NATIVE_CODEC, Usage
from holdfast.core.run.state import Faults, RetryState, RunState, StepCalls
from holdfast.core.run.turns import Totals, TurnInput
from holdfast.core.run.waiting import Decision, WaitingCall

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
COUNTS = st.integers(0, 2**40)
TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
DURATIONS = st.timedeltas(timedelta(0), timedelta(days=400))
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
DECISIONS = st.builds(
    Decision,
    kind=st.sampled_from(["approve", "deny", "value", "expire"]),
    arguments=VALUES,
    value=VALUES,
    comment=TEXTS,
    by=TEXTS,
    at=st.none() | TIMES,
)
WAITS = st.builds(
    WaitingCall,
    run_id=st.just("r"),
    call_id=TEXTS,
    step=COUNTS,
    tool=TEXTS,
    kind=st.sampled_from(["approval", "question", "signal", "timer", "result", "child"]),
    arguments=VALUES,
    topic=TEXTS,
    reason=TEXTS,
    metadata=VALUES,
    asked_at=TIMES,
    expires_at=st.none() | TIMES,
    timed=st.booleans(),
    decision=st.none() | DECISIONS,
    approval=st.none() | DECISIONS,
)
USAGE = st.builds(Usage, requests=COUNTS, input_tokens=COUNTS, output_tokens=COUNTS, tool_calls=COUNTS)
TURNS = st.builds(
    TurnInput, turn_id=TEXTS, number=COUNTS, prompt=TEXTS, digest=TEXTS, at=TIMES, totals=st.just(Totals())
)
STATES = st.builds(
    RunState,
    steps=COUNTS,
    phase=TEXTS,
    own_usage=USAGE,
    child_usage=USAGE,
    elapsed=DURATIONS,
    calls=st.builds(
        StepCalls,
        waits=st.dictionaries(TEXTS, WAITS, max_size=2),
        not_started=st.lists(TEXTS, max_size=2).map(tuple),
        in_doubt=st.lists(TEXTS, max_size=2).map(tuple),
    ),
    retry=st.builds(RetryState, count=COUNTS, error=TEXTS, next_at=st.none() | TIMES, outages=COUNTS),
    faults=st.builds(Faults, build_failures=COUNTS, exit_step=COUNTS, exit_error=TEXTS),
    nudges=st.lists(TEXTS, max_size=2).map(tuple),
    port_data=st.dictionaries(TEXTS, VALUES, max_size=2),
    loop_data=VALUES,
    turn=st.none()
    | st.builds(
        TurnInput, turn_id=TEXTS, number=COUNTS, prompt=TEXTS, digest=TEXTS, at=TIMES, totals=st.just(Totals())
    ),
)


@given(STATES)
def test_every_state_comes_back_as_it_was(state: RunState) -> None:
    progress = decode(encode(Progress.from_state(state, {}, ())), Progress)
    back = make_state(NATIVE_CODEC, progress, [], [])
    assert _describe(back) == _describe(state)


def _describe(state: RunState) -> Mapping[str, Any]:
    return {
        name: getattr(state, name)
        for name in RunState.__slots__
        if name not in ("codec", "history", "step_end", "turn_totals", "consumed", "recorded_events")
    }


def test_the_progress_of_a_new_run_is_nearly_empty() -> None:
    assert encode(Progress.from_state(RunState(), {}, ())) == b'{"elapsed":"P0D"}'
