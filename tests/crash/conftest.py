"""What the crash tests share."""

from collections.abc import Iterator

import pytest
from tests.crash.stores import Databases, Place, places


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    made = Databases()
    yield made
    made.drop()


@pytest.fixture
def place(request: pytest.FixtureRequest, databases: Databases) -> Place:
    """Where trials have their stores; the parameter says of which kind."""
    return places(databases)[str(request.param)]
