"""Agents of pydantic-ai are killed before and after every write and inside every tool call, and go on."""

import os

import pytest
from tests.store_kinds import STORES

from holdfast.testing.crash import crash_everywhere

#: Without it only some of the places are tried, of as many kinds as possible, and others each time.
THOROUGH = "HOLDFAST_TEST_THOROUGH" in os.environ
#: A process for trials takes long to import the library. The tests of a short run are concurrent themselves.
CONCURRENCY = None if THOROUGH else 1


@pytest.mark.parametrize("name", ["trip", "everything", "phased", "parent", "compacting"])
def test_an_agent_that_is_killed_anywhere_goes_on(name: str) -> None:
    report = crash_everywhere(
        f"tests.adapters.crash_agents:{name}", "go", sample=None if THOROUGH else 6, max_concurrency=CONCURRENCY
    )
    # The quicker the machine, the fewer: replies that ask for harmless tools share a write with their results.
    assert len(report.points) >= 12


def test_an_agent_that_is_killed_again_and_again_goes_on() -> None:
    crash_everywhere(
        "tests.adapters.crash_agents:trip",
        "go",
        crashes=5,
        sample=40 if THOROUGH else 3,
        max_concurrency=CONCURRENCY,
    )


def test_an_agent_goes_on_whatever_the_store() -> None:
    """The other tests run on SQLite."""
    crash_everywhere(
        "tests.adapters.crash_agents:trip",
        "go",
        store=STORES["postgres"].open_empty,
        sample=None if THOROUGH else 4,
        max_concurrency=CONCURRENCY,
    )
