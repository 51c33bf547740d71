"""Agents of the native loop survive several crashes, and crashes between throttled saves. `make chaos` runs these."""

import itertools
from collections.abc import Callable

import pytest
from tests.testing.crash import agents
from tests.testing.crash.test_own_agents import ALL_PAIRS, CONCURRENCY, EVERYTHING, NAMES, SEED, STORES
from tests.testing.crash.trial_stores import TrialStore

from holdfast.testing import crash_everywhere

#: Every agent on one of the stores, in turn.
PAIRS = ALL_PAIRS if EVERYTHING else list(zip(NAMES, itertools.cycle(STORES), strict=False))


@pytest.mark.parametrize(("name", "trial_store"), PAIRS, indirect=["trial_store"])
def test_it_resumes_after_several_crashes(
    name: str, trial_store: TrialStore, record_property: Callable[[str, object], None]
) -> None:
    report = crash_everywhere(
        f"tests.testing.crash.agents:{name}",
        "Porto",
        store=trial_store,
        crashes=4,
        sample=30 if EVERYTHING else 3,
        seed=SEED,
        max_concurrency=CONCURRENCY,
    )
    record_property("oracle", f"{report.crashes} crashes at {len(report.points)} points, {len(report.failed)} failed")
    print(report)
    assert report.crashes >= len(report.trials)


@pytest.mark.parametrize(("name", "trial_store"), PAIRS, indirect=["trial_store"])
def test_it_resumes_with_throttled_saves(
    name: str, trial_store: TrialStore, record_property: Callable[[str, object], None]
) -> None:
    report = crash_everywhere(
        f"tests.testing.crash.agents:{name}",
        "Porto",
        store=trial_store,
        options=agents.throttled,
        sample=None if EVERYTHING else 4,
        seed=SEED,
        max_concurrency=CONCURRENCY,
    )
    record_property("oracle", f"{report.crashes} crashes at {len(report.points)} points, {len(report.failed)} failed")
    print(report)
    assert report.crashes == len(report.trials)
