"""Tools of a user's agents, recorded: each call is an entry of the ledger when it begins and when it ends."""

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.testing.simulation.machine.process import SimulatedProcess
from holdfast.testing.simulation.world_ledger import ToolEffect, WorldLedger


def record_effects(agents: Iterable[AgentSource], process: SimulatedProcess, ledger: WorldLedger) -> list[AgentSource]:
    """Return the agents. Tools of native ones write to the ledger."""
    return [
        replace(agent, tools=[_record(tool, process, ledger) for tool in agent.tools if isinstance(tool, Tool)])
        if isinstance(agent, Agent)
        else agent
        for agent in agents
    ]


def _record(tool: Tool, process: SimulatedProcess, ledger: WorldLedger) -> Tool:
    recorded = copy.copy(tool)
    wrap = _wrap_sync if tool.in_thread else _wrap_async
    recorded.function = wrap(tool.function, tool.effect.value, process, ledger)
    return recorded


def begin_effect(kind: str, process: SimulatedProcess, ledger: WorldLedger) -> ToolEffect:
    """Record that the current call begins."""
    process.check_alive()
    call = current_call()
    effect = ToolEffect(call.run_id, call.step, call.call_id, call.tool, kind)
    ledger.begin(effect)
    return effect


def _wrap_async(
    function: Callable[..., Any], kind: str, process: SimulatedProcess, ledger: WorldLedger
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(**arguments: Any) -> Any:
        effect = begin_effect(kind, process, ledger)
        result = await function(**arguments)
        process.check_alive()
        ledger.finish(effect)
        return result

    return call


def _wrap_sync(
    function: Callable[..., Any], kind: str, process: SimulatedProcess, ledger: WorldLedger
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        effect = begin_effect(kind, process, ledger)
        result = function(**arguments)
        process.check_alive()
        ledger.finish(effect)
        return result

    return call
