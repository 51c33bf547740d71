"""The kernel: executes agents step by step. The names that a host with its own loop, ports or tools needs."""

from holdfast.core.agents.agent import Model
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.agents.tool import Tool, ToolPolicy, ToolSchema
from holdfast.core.agents.tool_context import ToolContext, emit_reasoning
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.step import StepContext
from holdfast.core.loop import Loop
from holdfast.core.ports import Ports, ToolProvider
from holdfast.core.run.info import RunOptions
from holdfast.core.run.messages import Message

__all__ = [
    "CallRequest",
    "Effect",
    "Executor",
    "Loop",
    "Message",
    "Model",
    "Ports",
    "RunOptions",
    "StepContext",
    "Tool",
    "ToolContext",
    "ToolPolicy",
    "ToolProvider",
    "ToolSchema",
    "emit_reasoning",
]
