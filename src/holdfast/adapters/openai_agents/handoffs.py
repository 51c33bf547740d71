"""The agents that a run can reach by handoffs, and the copies of them that one attempt executes."""

from collections.abc import Iterator, Sequence
from typing import Any

from agents import Agent, FunctionTool, Handoff, Model, RunContextWrapper, Tool, handoff
from agents._public_agent import set_public_agent
from agents.tool import ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool

from holdfast.adapters.openai_agents.batch import SDKBatch
from holdfast.adapters.openai_agents.model import ModelRecorder
from holdfast.adapters.openai_agents.public_hooks import PublicAgentHooks
from holdfast.adapters.tool_policies import ONCE, PURE, ToolPolicies, find_policy
from holdfast.core.agents.tool import Tool as HoldfastTool
from holdfast.core.errors import DefinitionError, MissingDefinition

#: Tools that the SDK executes itself, without a seam where one call could be recorded.
_UNRECORDED_TOOLS = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool)


class AgentGraph:
    """The agents that can be reached by handoffs, by name."""

    def __init__(self, root: Agent[Any], tools: ToolPolicies) -> None:
        """Collect the agents.

        Raises:
            DefinitionError: two agents have the same name, a tool of one cannot be recorded, or a handoff has a policy
                that only tools can have.
        """
        self.root = root
        self._agents: dict[str, Agent[Any]] = {}
        for agent in _iter_agents(root, set()):
            if agent.name in self._agents:
                raise DefinitionError(
                    f"two agents are named {agent.name!r}: give one another name, a resumed run finds its agent by it"
                )
            _check_tools(agent)
            _check_handoffs(agent, tools)
            self._agents[agent.name] = agent

    def __iter__(self) -> Iterator[Agent[Any]]:
        return iter(self._agents.values())

    def find(self, name: str | None) -> Agent[Any]:
        """Return the agent with this name; the root for `None`.

        Raises:
            MissingDefinition: there is none.
        """
        if name is None:
            return self.root
        if name not in self._agents:
            raise MissingDefinition(f"the active agent of the run is {name!r}, which no handoff here reaches")
        return self._agents[name]


def _iter_agents(agent: Agent[Any], seen: set[int]) -> Iterator[Agent[Any]]:
    if id(agent) in seen:
        return
    seen.add(id(agent))
    yield agent
    for each in agent.handoffs:
        reference = each._agent_ref if isinstance(each, Handoff) else None
        target = reference() if reference is not None else each
        if isinstance(target, Agent):
            yield from _iter_agents(target, seen)


def _check_tools(agent: Agent[Any]) -> None:
    for tool in agent.tools:
        if isinstance(tool, _UNRECORDED_TOOLS) and not _is_hosted(tool):
            raise DefinitionError(
                f"agent {agent.name}: calls of a {type(tool).__name__} cannot be recorded one by one; "
                "make a function tool of it"
            )


def _check_handoffs(agent: Agent[Any], tools: ToolPolicies) -> None:
    for each in agent.handoffs:
        name = each.tool_name if isinstance(each, Handoff) else Handoff.default_tool_name(each)
        policy = find_policy(tools, name, None)
        if policy.approval is not False or policy.retry is not None:
            raise DefinitionError(f"{name} is a handoff: it has neither an approval nor a retry")


def _is_hosted(tool: Tool) -> bool:
    """Whether the provider executes a shell tool, in a container."""
    environment = getattr(tool, "environment", None) or {}
    return str(environment.get("type", "")).startswith("container")


class ExecutedAgents:
    """Copies of the agents for one attempt of a run: their models, tools and handoffs are recorded."""

    def __init__(
        self,
        graph: AgentGraph,
        batch: SDKBatch,
        recorder: ModelRecorder,
        *,
        extra_tools: Sequence[HoldfastTool],
        skip_input_guardrails: bool,
    ) -> None:
        self._graph, self._batch, self._recorder = graph, batch, recorder
        self._extra_tools = [batch.make_function_tool(tool) for tool in extra_tools]
        self._skip_input_guardrails = skip_input_guardrails
        self._copies: dict[int, Agent[Any]] = {}
        #: The originals of the copies: held so that no id is used again.
        self._originals: list[Agent[Any]] = []

    def get(self, agent: Agent[Any] | str | None) -> Agent[Any]:
        """Return the copy of an agent, which is found by its name if need be."""
        original = agent if isinstance(agent, Agent) else self._graph.find(agent)
        if id(original) not in self._copies:
            self._originals.append(original)
            self._copies[id(original)] = self._copy(original)
        return self._copies[id(original)]

    def _copy(self, agent: Agent[Any]) -> Agent[Any]:
        changes: dict[str, Any] = {
            "tools": [*map(self._wrap, agent.tools), *self._extra_tools],
            "handoffs": [self._wrap_handoff(each) for each in agent.handoffs],
        }
        if agent.hooks is not None:
            changes["hooks"] = PublicAgentHooks(agent.hooks)
        if self._skip_input_guardrails:
            changes["input_guardrails"] = []
        if isinstance(agent.model, Model):
            changes |= {"model": self._recorder.wrap(agent.model), "model_settings": agent.model_settings}
        copied = set_public_agent(agent.clone(**changes), agent)
        known = list(agent.tools)

        async def get_mcp_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            return [self._wrap(tool) for tool in await agent.get_mcp_tools(context)]

        async def get_all_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            if known != agent.tools:  # a tool or a hook has changed the list
                known[:] = agent.tools
                copied.tools[:] = [*map(self._wrap, known), *self._extra_tools]
            return await Agent.get_all_tools(copied, context)

        copied.get_mcp_tools = get_mcp_tools  # type: ignore[assignment,method-assign]
        copied.get_all_tools = get_all_tools  # type: ignore[assignment,method-assign]
        return copied

    def _wrap(self, tool: Tool) -> Tool:
        return self._batch.wrap_tool(tool) if isinstance(tool, FunctionTool) else tool

    def _wrap_handoff(self, given: Any) -> Handoff[Any, Any]:
        if isinstance(given, Agent):
            return self._batch.wrap_handoff(handoff(given), PURE, self.get)
        # It may have an `on_handoff` of its own, which is not called twice.
        return self._batch.wrap_handoff(given, ONCE, self.get)
