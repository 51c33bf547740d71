"""A worker process that a test kills: it begins to write a story and never ends."""

import asyncio
import sys
from collections.abc import Sequence

from holdfast.app import App
from holdfast.core.agent import Agent
from holdfast.core.message import Message, Reply
from holdfast.core.reply_stream import emit_text
from holdfast.core.tool import ToolSchema


async def write_forever(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    await emit_text("It was a dark and stormy night")
    await asyncio.Event().wait()
    raise AssertionError("never set")


async def main(store: str) -> None:
    async with App([Agent(name="novelist", model=write_forever)], store) as app:
        await app.submit("novelist", "Write a novel.", run_id="novel", caller_id="ed")
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
