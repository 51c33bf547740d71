"""The agents of an App by name: its own, those of its repositories, and the one that a caller means."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.native_loop import NATIVE_LOOP
from holdfast.runtime.agent_registry import AgentRegistry, find_agent, find_loop, resolve_agent
from holdfast.workflows import workflow


class Repository:
    def __init__(self, *agents: AgentSource) -> None:
        self.agents: Mapping[str, AgentSource] = {agent.name: agent for agent in agents}


def make_agent(name: str) -> Agent[Any]:
    return Agent(name=name, model=ScriptedModel("done"))


def test_own_agents_come_before_those_of_repositories_and_each_name_once() -> None:
    own, shadowed, first, second = make_agent("a"), make_agent("a"), make_agent("b"), make_agent("b")
    one, two = Repository(shadowed, first), Repository(second, make_agent("c"))
    agents = AgentRegistry([one, own, two])
    assert agents.repositories == [one, two]
    assert (list(agents), len(agents)) == (["a", "b", "c"], 3)
    assert agents["a"] is own
    assert agents["b"] is first
    assert agents["c"] is two.agents["c"]
    with pytest.raises(KeyError, match="d"):
        agents["d"]
    one.agents = {"d": make_agent("d")}
    assert list(agents) == ["a", "d", "b", "c"], "what the repositories know now"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([make_agent("a"), make_agent("a")], "two agents are named 'a'"),
        ([Agent], "is not an agent"),
        (["a"], "'a' is not an agent"),
        ([SimpleNamespace(name="a")], "is not an agent"),
        (7, "a list of agents"),
    ],
)
def test_what_is_no_list_of_agents_is_refused(given: Any, error: str) -> None:
    with pytest.raises(DefinitionError, match=error):
        AgentRegistry(given)


def test_a_caller_means_an_agent_that_recovery_finds_by_its_name() -> None:
    known = make_agent("a")
    agents = AgentRegistry([known, make_agent("b")])
    assert find_agent(agents, "a") is known
    assert resolve_agent(agents, "a") is known
    assert resolve_agent(agents, known) is known
    with pytest.raises(DefinitionError, match="another agent of this App is named 'a'"):
        resolve_agent(agents, make_agent("a"))
    for unknown in ("c", make_agent("c")):
        with pytest.raises(DefinitionError, match="no agent 'c'; known: a, b"):
            resolve_agent(agents, unknown)
    with pytest.raises(DefinitionError, match="known: none"):
        find_agent({}, "c")
    nameless = make_agent("d")
    object.__setattr__(nameless, "name", 7)
    with pytest.raises(DefinitionError, match="is not an agent"):
        resolve_agent(agents, nameless)


def test_the_loop_of_an_unknown_agent_is_native() -> None:
    @workflow
    async def flow() -> str:
        return "done"

    agents = AgentRegistry([make_agent("a"), flow])
    assert find_loop(agents, "a") is NATIVE_LOOP
    assert find_loop(agents, "unknown") is NATIVE_LOOP
    assert find_loop(agents, flow.name) is not NATIVE_LOOP
