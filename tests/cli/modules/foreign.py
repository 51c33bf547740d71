"""An agent of pydantic-ai, without a provider."""

import asyncio
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent(TestModel(), name="foreign")


def did(what: str) -> None:
    with Path("effects").open("a") as file:
        file.write(f"{what}\n")


@agent.tool_plain
async def lookup(word: str) -> str:
    did("lookup")
    return f"found {word}"


@agent.tool_plain(metadata={"effect": "idempotent"})
async def gate(word: str) -> str:
    did("gate")
    while not Path("open").exists():  # noqa: ASYNC110 - it is opened by another process
        await asyncio.sleep(0.01)
    return "open"
