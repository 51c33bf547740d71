"""The checkpointer that does not await its saves, under an agent of pydantic-ai."""

from tests.testing.crash.planted import unawaited_intent as unawaited_intent
from tests.testing.crash.pydantic_ai_agents import agent as agent
