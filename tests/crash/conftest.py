"""What the crash tests share."""

from collections.abc import Iterator

import pytest
from tests.crash.trial_stores import DatabasePool, TrialStore, make_trial_stores


@pytest.fixture(scope="session")
def databases() -> Iterator[DatabasePool]:
    made = DatabasePool()
    yield made
    made.drop()


@pytest.fixture
def place(request: pytest.FixtureRequest, databases: DatabasePool) -> TrialStore:
    """Where trials have their stores; the parameter says of which kind."""
    return make_trial_stores(databases)[str(request.param)]
