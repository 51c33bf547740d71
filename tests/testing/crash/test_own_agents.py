"""Agents of the native loop survive a crash at every point, on every durable store.

By default at one point of each kind on SQLite (before and after each kind of write, at the start and the end of each
tool) and at some of them on PostgreSQL; with HOLDFAST_CHAOS at every point on both.
"""

import itertools
import os
from collections.abc import Callable

import pytest
from tests.testing.crash import agents
from tests.testing.crash.trial_stores import TrialStore

from holdfast.testing import crash_everywhere
from holdfast.testing.crash.trials import get_point_kind

#: Set by `make chaos`.
EVERYTHING = bool(os.environ.get("HOLDFAST_CHAOS"))

NAMES = sorted(agents.ALL)
STORES = ["sqlite", "postgres"]
ALL_PAIRS = list(itertools.product(NAMES, STORES))
#: A sample is the same each time, so that a test that passed fails only after a change.
SEED = None if EVERYTHING else 1
#: A process for the trials of an agent has to import it. The tests of a short run are concurrent themselves.
CONCURRENCY = None if EVERYTHING else 1


@pytest.mark.parametrize(("name", "trial_store"), ALL_PAIRS, indirect=["trial_store"])
def test_it_resumes_after_a_crash_anywhere(
    name: str, trial_store: TrialStore, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    every_kind = EVERYTHING or request.node.callspec.params["trial_store"] == "sqlite"
    report = crash_everywhere(
        f"tests.testing.crash.agents:{name}",
        "Porto",
        store=trial_store,
        sample=None if EVERYTHING else "kinds" if every_kind else 5,
        seed=SEED,
        max_concurrency=CONCURRENCY,
    )
    record_property("oracle", f"{report.crashes} crashes at {len(report.points)} points, {len(report.failed)} failed")
    print(report)
    assert not report.failed
    assert report.crashes == len(report.trials)
    planned = {trial.planned for trial in report.trials}
    if EVERYTHING:
        assert planned == set(report.points)
    if every_kind:
        assert set(map(get_point_kind, planned)) == set(map(get_point_kind, report.points))
        ends = ("before end (done)", "after end (done)")
        kinds = ("before creation", "after creation", "at the start", "at the end", *ends)
        assert all(any(point.startswith(kind) for point in report.points) for kind in kinds)


def test_a_call_in_doubt_is_reported_reconciled_or_parked() -> None:
    report = crash_everywhere(agents.reconciled, "Porto", store="sqlite:{folder}/runs.db", max_concurrency=CONCURRENCY)
    doubts = {call.partition("/")[2] for trial in report.trials for call in trial.in_doubt}
    assert doubts == {"send-0", "phone-10", "send-11", "sign-20"}
    by_point = {trial.planned: trial for trial in report.trials}
    # A reconciled call has the same result as in the baseline run; an unknown one does not.
    assert by_point["at the end of send send-0 in step 1 of crash-test"].exact
    assert not by_point["at the end of phone phone-10 in step 2 of crash-test"].exact
    assert not by_point["at the end of sign sign-20 in step 3 of crash-test"].exact
