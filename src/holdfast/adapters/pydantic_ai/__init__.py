"""Agents of pydantic-ai as agents of holdfast. Needs the extra `pydantic-ai`."""

from holdfast.adapters.pydantic_ai.durable import PydanticAILoop, durable

__all__ = ["PydanticAILoop", "durable"]
