"""Agents of the OpenAI Agents SDK are killed before and after every write and inside every tool call, and go on."""

import os

import pytest

from holdfast.testing.crash import crash_everywhere

#: Without it only some of the places are tried, others each time.
THOROUGH = "HOLDFAST_TEST_THOROUGH" in os.environ


@pytest.mark.parametrize("name", ["trip", "desk", "stopping"])
def test_an_agent_that_is_killed_anywhere_goes_on(name: str) -> None:
    agent = f"tests.adapters.openai_agents.crash_agents:{name}"
    report = crash_everywhere(agent, "go", sample=None if THOROUGH else 4, max_concurrency=1)
    assert len(report.points) >= 8
