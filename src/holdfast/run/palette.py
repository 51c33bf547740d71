"""Agents as tools of other agents: child runs, with caps on loops, depth and number."""

from collections.abc import Callable, Collection, Iterable, Sequence

from holdfast.run.agent import AgentSource
from holdfast.run.call import current_call
from holdfast.run.effects import Effect
from holdfast.run.errors import DefinitionError
from holdfast.run.info import RunInfo
from holdfast.run.tool import Tool


class AgentPalette:
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
            name = tool_name(agent.name)
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
        budget = _Count(self._max_children)
        return [
            _as_tool(name, agent, budget)
            for name, agent in self._agents.items()
            if agent.name not in above and (names is None or agent.name in names)
        ]


class _Count:
    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0

    def take(self) -> None:
        if self._taken >= self._most:
            raise RuntimeError(f"this run has started its {self._most} child runs: do the rest without them")
        self._taken += 1


def tool_name(agent_name: str) -> str:
    """The name under which a model calls an agent: providers take letters, digits, `_` and `-` only."""
    return "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in agent_name)[:64]


def _as_tool(name: str, agent: AgentSource, budget: _Count) -> Tool:
    async def call(prompt: str) -> object:
        budget.take()
        return (await current_call().run(agent, prompt)).output

    about = (
        getattr(agent, "description", "") or f"Hand a task over to the agent {agent.name}. Say all it needs to know."
    )
    return Tool(call, name=name, description=about, effect=Effect.IDEMPOTENT)
