"""Our own agents, killed everywhere, on every store that is durable.

By default everywhere on SQLite and at some points on the others; with HOLDFAST_CHAOS everywhere on all of them, and
several times in one run.
"""

import itertools
import os

import pytest
from tests.crash import agents
from tests.crash.trial_stores import TrialStore

from holdfast.testing import crash_everywhere

#: `make chaos` says that there is time for all of it.
EVERYTHING = bool(os.environ.get("HOLDFAST_CHAOS"))

NAMES = sorted(agents.ALL)
STORES = ["sqlite", "postgres"]
ALL_PAIRS = list(itertools.product(NAMES, STORES))
#: Every agent on one of the stores, in turn.
PAIRS = ALL_PAIRS if EVERYTHING else list(zip(NAMES, itertools.cycle(STORES), strict=False))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "place"), ALL_PAIRS, indirect=["place"])
def test_it_goes_on_from_a_crash_anywhere(name: str, place: TrialStore, request: pytest.FixtureRequest) -> None:
    everywhere = EVERYTHING or request.node.callspec.params["place"] == "sqlite"
    report = crash_everywhere(f"tests.crash.agents:{name}", "Porto", store=place, sample=None if everywhere else 5)
    print(report)
    assert not report.failed
    assert report.crashes == len(report.trials)
    if everywhere:
        assert {trial.planned for trial in report.trials} == set(report.points)
        kinds = ("before creation", "after creation", "at the start", "at the end", "before removal", "after removal")
        assert all(any(point.startswith(kind) for point in report.points) for kind in kinds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "place"), PAIRS, indirect=["place"])
def test_it_goes_on_from_several_crashes(name: str, place: TrialStore) -> None:
    report = crash_everywhere(
        f"tests.crash.agents:{name}", "Porto", store=place, crashes=4, sample=30 if EVERYTHING else 3
    )
    print(report)
    assert report.crashes >= len(report.trials)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "place"), PAIRS, indirect=["place"])
def test_it_goes_on_when_only_what_must_be_is_written(name: str, place: TrialStore) -> None:
    report = crash_everywhere(
        f"tests.crash.agents:{name}",
        "Porto",
        store=place,
        options=agents.throttled,
        sample=None if EVERYTHING else 4,
    )
    print(report)
    assert report.crashes == len(report.trials)


def test_a_call_in_doubt_is_told_reconciled_or_parked() -> None:
    report = crash_everywhere(agents.reconciled, "Porto", store="sqlite:{folder}/runs.db")
    doubts = {call.partition("/")[2] for trial in report.trials for call in trial.in_doubt}
    assert doubts == {"send-0", "phone-10", "send-11", "sign-20"}
    by_point = {trial.planned: trial for trial in report.trials}
    # Reconciled, so the transcript is the same; unknown, so it is not.
    assert by_point["at the end of send send-0 in step 1 of crash-test"].exact
    assert not by_point["at the end of phone phone-10 in step 2 of crash-test"].exact
    assert not by_point["at the end of sign sign-20 in step 3 of crash-test"].exact
