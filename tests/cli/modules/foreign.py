"""An agent of pydantic-ai, without a provider."""

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(), name="foreign")


@agent.tool_plain
def lookup(word: str) -> str:
    return f"found {word}"
