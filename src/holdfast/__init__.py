"""Durable LLM agent runs: an interrupted run resumes where it stopped.

These are the names of a first week. `holdfast.errors`, `holdfast.events` and `holdfast.results` have what an App raises
and returns; `holdfast.core`, `holdfast.checkpoint` and `holdfast.stores` what a host with parts of its own needs.
"""

from holdfast.app import App
from holdfast.config import CheckpointSettings, Retention, WorkerSettings
from holdfast.core.agents.agent import Agent, Bounds, Phase
from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN, Completed
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import current_call, emit_text
from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import ApprovalRequest, Approve, Deferred, Deny, RunWaiting, Value
from holdfast.root_error import HoldfastError

__all__ = [
    "NOT_EXECUTED",
    "UNKNOWN",
    "Agent",
    "App",
    "ApprovalRequest",
    "Approve",
    "Bounds",
    "CheckpointSettings",
    "Completed",
    "Deferred",
    "Deny",
    "HoldfastError",
    "Phase",
    "Reply",
    "Result",
    "Retention",
    "Retry",
    "RunInfo",
    "RunWaiting",
    "System",
    "ToolCall",
    "ToolResult",
    "Usage",
    "User",
    "Value",
    "WorkerSettings",
    "ask_person",
    "current_call",
    "emit_text",
    "sleep",
    "tool",
    "wait_for",
]
