"""How an attempt ends whose run has not ended, and the record of a damaged row."""

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.checkpoint.finishing import end_left
from holdfast.checkpoint.record import RunStatus, make_damaged_record
from holdfast.checkpoint.workers import Claim, backoff
from holdfast.core.ports import Leave
from holdfast.core.run.info import RunIndex

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
