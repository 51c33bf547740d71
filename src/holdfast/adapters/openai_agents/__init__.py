"""Agents of the OpenAI Agents SDK as agents of holdfast. Needs the extra `openai-agents`."""

from holdfast.adapters.openai_agents.loop import OpenAIAgentsLoop, durable

__all__ = ["OpenAIAgentsLoop", "durable"]
