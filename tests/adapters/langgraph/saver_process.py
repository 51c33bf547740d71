"""Puts checkpoints in several threads until it is killed, and prints what the saver has acknowledged."""

import asyncio
import os
import sys

from tests.adapters.langgraph.support import Thread, make_messages

from holdfast.adapters.langgraph import HoldfastSaver

THREADS = 8
MESSAGES = make_messages(400)


async def put_forever(saver: HoldfastSaver, name: str) -> None:
    thread, parent = Thread(saver, name), None
    for count in range(1, len(MESSAGES)):
        parent = await thread.put(MESSAGES[:count], parent)
        await saver.aput_writes(parent, [("messages", count)], f"task-{count}")
        # One `write`, so that a line is there as a whole or not at all.
        os.write(1, f"{name} {parent['configurable']['checkpoint_id']} {count}\n".encode())


async def main() -> None:
    async with HoldfastSaver.from_url(sys.argv[1]) as saver:
        await asyncio.gather(*(put_forever(saver, f"thread-{number}") for number in range(THREADS)))


if __name__ == "__main__":
    asyncio.run(main())
