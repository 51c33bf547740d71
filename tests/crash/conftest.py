"""Fixtures of the crash tests."""

from collections.abc import Iterator

import pytest
from tests.crash.trial_stores import DatabasePool, TrialStore, make_trial_stores


@pytest.fixture(scope="session")
def databases() -> Iterator[DatabasePool]:
    pool = DatabasePool()
    yield pool
    pool.drop()


@pytest.fixture
def trial_store(request: pytest.FixtureRequest, databases: DatabasePool) -> TrialStore:
    """The stores of the trials, of the kind that the parameter names."""
    return make_trial_stores(databases)[str(request.param)]
