"""The agents of an App, by name: an interrupted run finds its agent by it."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.core.agents.agent import AgentRepository, AgentSource
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.native_loop import NATIVE_LOOP, get_loop
from holdfast.core.loop import Loop
from holdfast.core.validation import check_type


class AgentRegistry(Mapping[str, AgentSource]):
    """The agents of an App by name: those it was given, and those that its repositories know now."""

    def __init__(self, agents: Iterable[AgentSource | AgentRepository]) -> None:
        """Index the agents.

        Raises:
            DefinitionError: one is neither an agent nor a repository, or two have the same name.
        """
        check_type("agents", agents, Iterable, "a list of agents")
        self._own: dict[str, AgentSource] = {}
        self.repositories: list[AgentRepository] = []
        for agent in agents:
            if isinstance(agent, AgentRepository):
                self.repositories.append(agent)
            else:
                self._add(agent)

    def _add(self, agent: AgentSource) -> None:
        _check_agent(agent)
        if agent.name in self._own:
            raise DefinitionError(f"two agents are named {agent.name!r}: interrupted runs find their agent by its name")
        self._own[agent.name] = agent

    def __getitem__(self, name: str) -> AgentSource:
        if name in self._own:
            return self._own[name]
        for repository in self.repositories:
            if name in repository.agents:
                return repository.agents[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        seen = set(self._own)
        for repository in self.repositories:
            for name in tuple(repository.agents):
                if name not in seen:
                    seen.add(name)
                    yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def find_agent(agents: Mapping[str, AgentSource], name: str) -> AgentSource:
    """Return the agent of this name.

    Raises:
        DefinitionError: there is none.
    """
    if name not in agents:
        raise DefinitionError(f"no agent {name!r}; known: {', '.join(sorted(agents)) or 'none'}")
    return agents[name]


def find_loop(agents: Mapping[str, AgentSource], name: str) -> Loop:
    """Return the loop of the agent of this name. That of an unknown agent is native."""
    agent = agents.get(name)
    return NATIVE_LOOP if agent is None else get_loop(agent)


def resolve_agent(agents: Mapping[str, AgentSource], agent: AgentSource | str) -> AgentSource:
    """Return the agent that a caller means. Refuse one that recovery would not find by its name.

    Raises:
        DefinitionError: the agent is unknown, or another one has its name.
    """
    if isinstance(agent, str):
        return find_agent(agents, agent)
    _check_agent(agent)
    if find_agent(agents, agent.name) is not agent:
        raise DefinitionError(f"another agent of this App is named {agent.name!r}: recovery would use that one")
    return agent


def _check_agent(agent: Any) -> None:
    if not isinstance(agent, AgentSource) or isinstance(agent, type) or not isinstance(agent.name, str):
        raise DefinitionError(f"{agent!r:.80} is not an agent: give an Agent, durable(...) or another AgentSource")
