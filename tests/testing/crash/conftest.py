"""Fixtures of the crash tests."""

import os

import pytest
from tests.testing.crash.trial_stores import TRIAL_STORES, TrialStore

#: Without `make chaos` the simulator crashes processes repeatedly: see docs/chaos.md.
collect_ignore = [] if os.environ.get("HOLDFAST_CHAOS") else ["test_repeated_crashes.py"]


@pytest.fixture
def trial_store(request: pytest.FixtureRequest) -> TrialStore:
    """The stores of the trials, of the kind that the parameter names."""
    return TRIAL_STORES[str(request.param)]
