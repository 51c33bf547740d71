"""Agents of the native loop survive a crash at every point, on every durable store.

By default at every point on SQLite and at a sample of them on PostgreSQL; with HOLDFAST_CHAOS at every point on both.
"""

import itertools
import os
from collections.abc import Callable

import pytest
from tests.crash import agents
from tests.crash.trial_stores import TrialStore

from holdfast.testing import crash_everywhere

#: Set by `make chaos`.
EVERYTHING = bool(os.environ.get("HOLDFAST_CHAOS"))

NAMES = sorted(agents.ALL)
STORES = ["sqlite", "postgres"]
ALL_PAIRS = list(itertools.product(NAMES, STORES))
#: A sample is the same each time, so that a test that passed fails only after a change.
SEED = None if EVERYTHING else 1
#: Every agent on one of the stores, in turn.
PAIRS = ALL_PAIRS if EVERYTHING else list(zip(NAMES, itertools.cycle(STORES), strict=False))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "trial_store"), ALL_PAIRS, indirect=["trial_store"])
def test_it_resumes_after_a_crash_anywhere(
    name: str, trial_store: TrialStore, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    everywhere = EVERYTHING or request.node.callspec.params["trial_store"] == "sqlite"
    report = crash_everywhere(
        f"tests.crash.agents:{name}", "Porto", store=trial_store, sample=None if everywhere else 5, seed=SEED
    )
    record_property("oracle", f"{report.crashes} crashes at {len(report.points)} points, {len(report.failed)} failed")
    print(report)
    assert not report.failed
    assert report.crashes == len(report.trials)
    if everywhere:
        assert {trial.planned for trial in report.trials} == set(report.points)
        ends = ("before end (done)", "after end (done)")
        kinds = ("before creation", "after creation", "at the start", "at the end", *ends)
        assert all(any(point.startswith(kind) for point in report.points) for kind in kinds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "trial_store"), PAIRS, indirect=["trial_store"])
def test_it_resumes_after_several_crashes(
    name: str, trial_store: TrialStore, record_property: Callable[[str, object], None]
) -> None:
    report = crash_everywhere(
        f"tests.crash.agents:{name}",
        "Porto",
        store=trial_store,
        crashes=4,
        sample=30 if EVERYTHING else 3,
        seed=SEED,
    )
    record_property("oracle", f"{report.crashes} crashes at {len(report.points)} points, {len(report.failed)} failed")
    print(report)
    assert report.crashes >= len(report.trials)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "trial_store"), PAIRS, indirect=["trial_store"])
def test_it_resumes_with_throttled_saves(
    name: str, trial_store: TrialStore, record_property: Callable[[str, object], None]
) -> None:
    report = crash_everywhere(
        f"tests.crash.agents:{name}",
        "Porto",
        store=trial_store,
        options=agents.throttled,
        sample=None if EVERYTHING else 4,
        seed=SEED,
    )
    record_property("oracle", f"{report.crashes} crashes at {len(report.points)} points, {len(report.failed)} failed")
    print(report)
    assert report.crashes == len(report.trials)


def test_a_call_in_doubt_is_reported_reconciled_or_parked() -> None:
    report = crash_everywhere(agents.reconciled, "Porto", store="sqlite:{folder}/runs.db")
    doubts = {call.partition("/")[2] for trial in report.trials for call in trial.in_doubt}
    assert doubts == {"send-0", "phone-10", "send-11", "sign-20"}
    by_point = {trial.planned: trial for trial in report.trials}
    # A reconciled call has the same result as in the baseline run; an unknown one does not.
    assert by_point["at the end of send send-0 in step 1 of crash-test"].exact
    assert not by_point["at the end of phone phone-10 in step 2 of crash-test"].exact
    assert not by_point["at the end of sign sign-20 in step 3 of crash-test"].exact
