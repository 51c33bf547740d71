"""Agents of pydantic-ai as agents of holdfast. Needs the extra `pydantic-ai`."""

from holdfast.adapters.pydantic_ai.durable import durable
from holdfast.core.agents.tool import ToolPolicy

__all__ = ["ToolPolicy", "durable"]
