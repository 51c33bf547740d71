"""From a response to its snapshot and back, by property."""

import msgspec
from hypothesis import given
from tests.fanout.strategies import PARTIALS, RESPONSES, untimed

from holdfast.fanout.snapshot import ModelResponse, PartialResponse, Snapshot


@untimed
@given(RESPONSES)
def test_a_response_comes_back_from_its_snapshot(response: ModelResponse) -> None:
    assert Snapshot.from_response(response).to_response() == response


@untimed
@given(RESPONSES)
def test_a_snapshot_comes_back_from_its_response_and_from_json(response: ModelResponse) -> None:
    snapshot = Snapshot.from_response(response)
    assert Snapshot.from_response(snapshot.to_response()) == snapshot
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot


@untimed
@given(RESPONSES)
def test_completed_means_answered(response: ModelResponse) -> None:
    snapshot = Snapshot.from_response(response)
    assert snapshot.completed == (response.error is None and not response.interrupted)
    standings = {"completed": snapshot.completed, "interrupted": snapshot.interrupted}
    assert sum(standings.values()) <= 1
    assert snapshot.status == next((name for name, holds in standings.items() if holds), "failed")


@untimed
@given(PARTIALS)
def test_what_is_in_progress_is_interrupted(partial: PartialResponse) -> None:
    snapshot = Snapshot.from_partial(partial)
    assert (snapshot.interrupted, snapshot.completed) == (True, False)
    assert snapshot.to_partial() == partial
    assert snapshot.to_response().interrupted
