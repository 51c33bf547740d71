"""Agents of the OpenAI Agents SDK as agents of holdfast, and sessions for it. Needs the extra `openai-agents`."""

from holdfast.core.agents.tool import ToolPolicy
from holdfast.extras import require_extra

with require_extra("openai-agents"):
    from holdfast.adapters.openai_agents.durable import durable
    from holdfast.adapters.openai_agents.sdk_session import HoldfastSession, HoldfastSessions

__all__ = ["HoldfastSession", "HoldfastSessions", "ToolPolicy", "durable"]
