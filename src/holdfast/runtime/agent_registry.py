"""The agents of an App, by name: an interrupted run finds its agent by it."""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import DefinitionError
from holdfast.core.validation import check_type


def index_agents(agents: Iterable[AgentSource]) -> dict[str, AgentSource]:
    """Return the agents by name.

    Raises:
        DefinitionError: one is no agent, or two have the same name.
    """
    check_type("agents", agents, Iterable, "a list of agents")
    table: dict[str, AgentSource] = {}
    for agent in agents:
        _check_agent(agent)
        if agent.name in table:
            raise DefinitionError(f"two agents are named {agent.name!r}: interrupted runs find their agent by its name")
        table[agent.name] = agent
    return table


def find_agent(agents: Mapping[str, AgentSource], name: str) -> AgentSource:
    """Return the agent of this name.

    Raises:
        DefinitionError: there is none.
    """
    if name not in agents:
        raise DefinitionError(f"no agent {name!r}: known are {', '.join(sorted(agents)) or 'none'}")
    return agents[name]


def resolve_agent(agents: Mapping[str, AgentSource], agent: AgentSource | str) -> AgentSource:
    """Return the agent that a caller means. Refuse one that recovery would not find by its name.

    Raises:
        DefinitionError: the agent is unknown, or another one has its name.
    """
    if isinstance(agent, str):
        return find_agent(agents, agent)
    _check_agent(agent)
    if find_agent(agents, agent.name) is not agent:
        raise DefinitionError(f"another agent of this App is named {agent.name!r}: recovery would take that one")
    return agent


def _check_agent(agent: Any) -> None:
    if not isinstance(agent, AgentSource) or isinstance(agent, type) or not isinstance(agent.name, str):
        raise DefinitionError(f"{agent!r:.80} is no agent: give an Agent, durable(...) or another AgentSource")
