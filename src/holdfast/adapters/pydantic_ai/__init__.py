"""Agents of pydantic-ai as agents of holdfast. Needs the extra `pydantic-ai`."""

from holdfast.adapters.pydantic_ai.durable import durable
from holdfast.adapters.pydantic_ai.loop import PydanticAILoop

__all__ = ["PydanticAILoop", "durable"]
