"""The checkpointer that does not await its saves, under an agent of pydantic-ai."""

from tests.crash.planted import unawaited_intent as unawaited_intent
from tests.crash.pydantic_ai_agents import agent as agent
