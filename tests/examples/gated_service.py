"""`examples/web_service.py` with a model that answers when the test opens the gate."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from examples import web_service
from holdfast import Agent, Reply
from holdfast.core import Message, ToolSchema


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    while not Path("gate").exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.01)
    return Reply(text="open")


web_service.app = web_service.app.replace(agents=[Agent(name="counter", model=model)])
server = web_service.server
