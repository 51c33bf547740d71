"""Agents of pydantic-ai as agents of holdfast. Needs the extra `pydantic-ai`."""

from holdfast.core.agents.tool import ToolPolicy
from holdfast.extras import require_extra

with require_extra("pydantic-ai"):
    from holdfast.adapters.pydantic_ai.durable import durable

__all__ = ["ToolPolicy", "durable"]
