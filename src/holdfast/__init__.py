"""Durable LLM agent runs: an interrupted run resumes where it stopped."""

from holdfast.app import App
from holdfast.checkpoint.errors import ConversationClosed
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.limits import ConcurrencyLimit
from holdfast.config import CheckpointSettings, Retention, WorkerSettings
from holdfast.core.agent import Agent, Bounds, Model, Phase
from holdfast.core.effects import NOT_EXECUTED, UNKNOWN, Completed, Effect
from holdfast.core.errors import ConversationBusy, ModelUnavailable, TurnFailed
from holdfast.core.execution.executor import Executor
from holdfast.core.info import RunInfo
from holdfast.core.message import Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.ports import Ports
from holdfast.core.reply_stream import emit_reasoning, emit_text
from holdfast.core.result import Result
from holdfast.core.retry import Retry
from holdfast.core.tool import Tool, ToolSchema, tool
from holdfast.core.tool_context import ToolContext, current_call
from holdfast.core.waiting import ApprovalRequest, Approve, Deferred, Deny, RunWaiting, Value, WaitingCall
from holdfast.core.waiting_tools import ask_person, sleep, wait_for
from holdfast.errors import HoldfastError
from holdfast.runtime.conversations.conversation import Conversation
from holdfast.runtime.conversations.turns import Turn
from holdfast.runtime.reading import RunDetails, RunList, RunSummary
from holdfast.stores.url import store_from_url

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
