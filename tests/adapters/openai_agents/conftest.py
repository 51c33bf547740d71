"""No test sends traces."""

import pytest
from agents import set_tracing_disabled


@pytest.fixture(autouse=True, scope="session")
def _without_tracing() -> None:
    set_tracing_disabled(True)
