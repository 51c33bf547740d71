"""Hooks of the SDK, called with the agents and tools of their author, not with the copies that a run executes."""

from typing import Any

from agents import AgentHooks, FunctionTool, RunHooks
from agents._public_agent import get_public_agent

from holdfast.adapters.openai_agents.batch import get_original_tool


class _SharedHooks:
    """What hooks of runs and hooks of agents have in common."""

    def __init__(self, hooks: Any) -> None:
        self._hooks = hooks

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: str | None, input_items: Any) -> None:
        await self._hooks.on_llm_start(context, get_public_agent(agent), system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        await self._hooks.on_llm_end(context, get_public_agent(agent), response)

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        await self._hooks.on_tool_start(context, get_public_agent(agent), _get_tool(tool))

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        await self._hooks.on_tool_end(context, get_public_agent(agent), _get_tool(tool), result)


class PublicRunHooks(_SharedHooks, RunHooks[Any]):
    """Hooks of a run."""

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        await self._hooks.on_agent_start(context, get_public_agent(agent))

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._hooks.on_agent_end(context, get_public_agent(agent), output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        await self._hooks.on_handoff(context, get_public_agent(from_agent), get_public_agent(to_agent))


class PublicAgentHooks(_SharedHooks, AgentHooks[Any]):
    """Hooks of an agent."""

    async def on_start(self, context: Any, agent: Any) -> None:
        await self._hooks.on_start(context, get_public_agent(agent))

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        await self._hooks.on_end(context, get_public_agent(agent), output)

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        await self._hooks.on_handoff(context, get_public_agent(agent), get_public_agent(source))


def _get_tool(tool: Any) -> Any:
    return get_original_tool(tool) if isinstance(tool, FunctionTool) else tool
