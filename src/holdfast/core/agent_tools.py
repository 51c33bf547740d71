"""Agents as tools of other agents: child runs, with caps on loops, depth and number."""

from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.core.agent import AgentSource
from holdfast.core.effects import Effect
from holdfast.core.errors import DefinitionError
from holdfast.core.info import RunInfo
from holdfast.core.tool import Tool
from holdfast.core.tool_context import current_call


class AgentToolProvider:
    """A `Palette`: lets runs call other agents as tools. A call that is made again meets the same child."""

    def __init__(
        self,
        agents: Iterable[AgentSource],
        *,
        allowed: Callable[[RunInfo], Collection[str]] | None = None,
        max_depth: int = 3,
        max_children: int = 20,
    ) -> None:
        """Make a palette.

        Args:
            agents: what can be called.
            allowed: the names that a run may call; without it all of them.
            max_depth: a run that is this deep may call none.
            max_children: how many children one run may start in one life: a resumed run may start as many again.

        Raises:
            DefinitionError: two agents would make tools of one name.
        """
        self._agents: dict[str, AgentSource] = {}
        for agent in agents:
            name = to_tool_name(agent.name)
            if name in self._agents:
                raise DefinitionError(f"two agents of the palette would be the tool {name!r}: rename one of them")
            self._agents[name] = agent
        self._allowed, self._max_depth, self._max_children = allowed, max_depth, max_children

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        """The agents that this run may call. Never itself, nor one that it was called by."""
        if len(info.lineage) >= self._max_depth:
            return ()
        names = self._allowed(info) if self._allowed is not None else None
        above = {*info.lineage, info.agent_name}
        budget = _ChildLimit(self._max_children)
        return [
            _agent_to_tool(name, agent, budget)
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
    """The name under which a model calls an agent: providers take letters, digits, `_` and `-` only."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in agent_name)[:64]


def _agent_to_tool(name: str, agent: AgentSource, limit: _ChildLimit) -> Tool:
    async def call(prompt: str) -> object:
        limit.acquire()
        return (await current_call().run(agent, prompt)).output

    about = (
        getattr(agent, "description", "") or f"Hand a task over to the agent {agent.name}. Say all it needs to know."
    )
    return Tool(call, name=name, description=about, effect=Effect.IDEMPOTENT)
