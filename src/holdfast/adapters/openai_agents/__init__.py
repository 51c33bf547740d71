"""Agents of the OpenAI Agents SDK as agents of holdfast, and sessions for it. Needs the extra `openai-agents`."""

from holdfast.adapters.openai_agents.durable import durable
from holdfast.adapters.openai_agents.sdk_session import HoldfastSession, HoldfastSessions
from holdfast.core.agents.tool import ToolPolicy

__all__ = ["HoldfastSession", "HoldfastSessions", "ToolPolicy", "durable"]
