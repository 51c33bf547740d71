"""The handle that does not await, under an agent that another loop drives."""

from tests.crash.foreign_agents import agent as agent
from tests.crash.planted import unawaited_intent as unawaited_intent
