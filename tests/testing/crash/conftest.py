"""Fixtures of the crash tests."""

import pytest
from tests.testing.crash.trial_stores import TRIAL_STORES, TrialStore


@pytest.fixture
def trial_store(request: pytest.FixtureRequest) -> TrialStore:
    """The stores of the trials, of the kind that the parameter names."""
    return TRIAL_STORES[str(request.param)]
