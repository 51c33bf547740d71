"""Durable LLM agent runs: an interrupted run resumes where it stopped."""

from holdfast.app import App
from holdfast.checkpoint.concurrency_limits import ConcurrencyLimit
from holdfast.checkpoint.errors import ConversationClosed
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.config import CheckpointSettings, Retention, WorkerSettings
from holdfast.core.agents.agent import Agent, Bounds, Model, Phase
from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN, Completed, Effect
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import Tool, ToolSchema, tool
from holdfast.core.agents.tool_context import ToolContext, current_call, emit_reasoning, emit_text
from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.errors import ConversationBusy, ModelUnavailable, TurnFailed
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import ApprovalRequest, Approve, Deferred, Deny, RunWaiting, Value, WaitingCall
from holdfast.root_error import HoldfastError
from holdfast.runtime.conversations import Conversation, Turn
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunSummary
from holdfast.stores.from_url import store_from_url

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
    "ConcurrencyLimit",
    "Conversation",
    "ConversationBusy",
    "ConversationClosed",
    "Deferred",
    "Deny",
    "Effect",
    "Executor",
    "HoldfastError",
    "Message",
    "Model",
    "ModelUnavailable",
    "Phase",
    "Ports",
    "Reply",
    "Result",
    "Retention",
    "Retry",
    "RunDetails",
    "RunInfo",
    "RunList",
    "RunSummary",
    "RunWaiting",
    "StoreCheckpoints",
    "System",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "ToolSchema",
    "Turn",
    "TurnFailed",
    "Usage",
    "User",
    "Value",
    "WaitingCall",
    "WorkerSettings",
    "ask_person",
    "current_call",
    "emit_reasoning",
    "emit_text",
    "sleep",
    "store_from_url",
    "tool",
    "wait_for",
]
