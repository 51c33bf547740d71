"""LLM agent runs that survive: an interrupted run goes on where it stopped."""

from holdfast.app import App
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.handle import HandleSettings
from holdfast.checkpoint.opening import store_from_url
from holdfast.errors import HoldfastError
from holdfast.run.agent import Agent, Bounds, Model, Phase
from holdfast.run.call import CallContext, current_call
from holdfast.run.effects import DID_NOT_HAPPEN, UNKNOWN, Effect, Happened
from holdfast.run.executor import Executor
from holdfast.run.info import RunInfo
from holdfast.run.message import Message, Reply, System, ToolCall, ToolResult, User
from holdfast.run.outcome import Result
from holdfast.run.ports import Ports
from holdfast.run.tool import Tool, ToolSchema, tool
from holdfast.run.usage import Usage

__all__ = [
    "DID_NOT_HAPPEN",
    "UNKNOWN",
    "Agent",
    "App",
    "Bounds",
    "CallContext",
    "Checkpoints",
    "Effect",
    "Executor",
    "HandleSettings",
    "Happened",
    "HoldfastError",
    "Message",
    "Model",
    "Phase",
    "Ports",
    "Reply",
    "Result",
    "RunInfo",
    "System",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolSchema",
    "Usage",
    "User",
    "current_call",
    "store_from_url",
    "tool",
]
