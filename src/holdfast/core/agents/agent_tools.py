"""Agents as tools of other agents: child runs, with caps on loops, depth and number."""

from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import AgentDetails, RunInfo


class AgentToolProvider:
    """A `ToolProvider` that offers agents as tools. A repeated call attaches to the same child run."""

    def __init__(
        self,
        agents: Iterable[AgentSource],
        *,
        allowed: Callable[[RunInfo], Collection[str]] | None = None,
        max_depth: int = 3,
        max_children: int = 20,
    ) -> None:
        """Make a provider.

        Args:
            agents: the agents that can be called.
            allowed: returns the names that a run may call; without it all of them.
            max_depth: a run with this many runs above it may call none.
            max_children: children that one run may start in one process. A resumed run may start as many again.

        Raises:
            DefinitionError: two agents would make tools of one name.
        """
        self._agents: dict[str, AgentSource] = {}
        for agent in agents:
            name = to_tool_name(agent.name)
            if name in self._agents:
                raise DefinitionError(f"two agents would be the tool {name!r}: rename one of them")
            self._agents[name] = agent
        self._allowed, self._max_depth, self._max_children = allowed, max_depth, max_children

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        """Return the agents that this run may call: never itself, nor one above it."""
        if len(info.lineage) >= self._max_depth:
            return ()
        names = self._allowed(info) if self._allowed is not None else None
        above = {*info.lineage, info.agent_name}
        limit = _ChildLimit(self._max_children)
        return [
            _agent_to_tool(name, agent, limit)
            for name, agent in self._agents.items()
            if agent.name not in above and (names is None or agent.name in names)
        ]


class _ChildLimit:
    def __init__(self, limit: int) -> None:
        self._limit, self._count = limit, 0

    def acquire(self) -> None:
        if self._count >= self._limit:
            raise RuntimeError(f"this run has started its {self._limit} child runs: do the rest without them")
        self._count += 1


def to_tool_name(agent_name: str) -> str:
    """Return the name under which a model calls an agent: providers allow letters, digits, `_` and `-` only."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in agent_name)[:64]


def _agent_to_tool(name: str, agent: AgentSource, limit: _ChildLimit) -> Tool:
    async def call(prompt: str) -> object:
        limit.acquire()
        return (await current_call().run(agent, prompt)).output

    about = AgentDetails.from_source(agent).description
    return Tool(
        call,
        name=name,
        description=about or f"Hand a task over to the agent {agent.name}. Say all it needs to know.",
        effect=Effect.IDEMPOTENT,
    )
