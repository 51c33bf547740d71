"""The handle that does not await, under an agent that another loop drives."""

from tests.crash.planted import unawaited_intent as unawaited_intent
from tests.crash.pydantic_ai_agents import agent as agent
