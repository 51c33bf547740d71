"""A worker that streams: `python -m tests.runtime.streams.streaming_worker URL [hang]`.

`hang`: its second reply never ends.
"""

import asyncio
import sys
from collections.abc import Sequence

from tests.runtime.streams.watching import look

from holdfast import Agent, App, Reply, ToolCall, emit_text
from holdfast.core import Message, ToolSchema


def make_agent(*, hangs: bool) -> Agent:
    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if not any(isinstance(message, Reply) for message in messages):
            return Reply(text="let me see", tool_calls=[ToolCall(id="1", name="look", arguments={"city": "Rome"})])
        await emit_text("Rome ")
        if hangs:
            await asyncio.Event().wait()
        return Reply(text="Rome is warm")

    return Agent(name="streaming", model=model, tools=[look])


async def main(url: str, *options: str) -> None:
    async with App([make_agent(hangs="hang" in options)], url) as app:
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
