"""Durable graphs are killed before and after every write and inside every tool call, and continue."""

import os

import pytest
from tests.store_kinds import STORES

from holdfast.testing.crash import crash_everywhere

#: Without it only some of the places are tried, others each time.
THOROUGH = "HOLDFAST_TEST_THOROUGH" in os.environ


@pytest.mark.parametrize(("name", "kind"), [("trip", "sqlite"), ("nested", "postgres")])
def test_a_graph_that_is_killed_anywhere_continues(name: str, kind: str) -> None:
    report = crash_everywhere(
        f"tests.adapters.langgraph.graphs:{name}",
        "go",
        store=STORES[kind].open_empty,
        sample=None if THOROUGH else 3,
        max_concurrency=None if THOROUGH else 1,
    )
    assert len(report.points) >= 30
