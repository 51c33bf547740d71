"""Two processes that add pairs of items to one session until they are killed, and print what is acknowledged."""

import asyncio
import os
import sys
from typing import Any

from holdfast.adapters.openai_agents import HoldfastSessions

SESSION = "shared"
#: Pairs that each process writes. SQLite hands its lock to any process: one must not keep the other waiting for long.
PAIRS = 50


def make_pair(writer: str, number: int) -> list[Any]:
    return [{"role": role, "content": f"{writer} {number}"} for role in ("user", "assistant")]


async def add_forever(url: str, writer: str) -> None:
    async with HoldfastSessions.from_url(url) as sessions:
        session = sessions.get(SESSION)
        for number in range(PAIRS):
            await session.add_items(make_pair(writer, number))
            # One `write`, so that a line is there as a whole or not at all.
            os.write(1, f"{writer} {number}\n".encode())
        await asyncio.Event().wait()


if __name__ == "__main__":
    name = "child" if os.fork() == 0 else "parent"
    asyncio.run(add_forever(sys.argv[1], name))
