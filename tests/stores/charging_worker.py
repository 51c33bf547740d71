"""A worker of any release: `python charging_worker.py URL FOLDER`, with that release on the path. Uses no other code.

It submits runs, and executes them and those of others until SIGTERM. Each run calls a `once` tool, step after step,
until there is a file `stop` in the folder. The ledger in the folder has a line for each call.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Bounds, Reply, ToolCall, current_call, tool
from holdfast.core import Message, ToolSchema

URL, FOLDER = sys.argv[1], Path(sys.argv[2])
RUNS = 4


@tool
async def charge() -> str:
    call = current_call()
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(f"{call.run_id} {call.call_id} {os.getpid()}\n")
    await asyncio.sleep(0.01)
    return "charged"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    steps = sum(isinstance(message, Reply) for message in messages)
    if steps < 2 or not (FOLDER / "stop").exists():
        return Reply(tool_calls=[ToolCall(id=f"charge-{steps}", name="charge")])
    return Reply(text=str(steps))


CLERK = Agent(name="clerk", model=model, tools=[charge], bounds=Bounds(max_steps=10_000, max_repeats=10_000))


async def main() -> None:
    async with App([CLERK], URL) as app:
        for number in range(RUNS):
            await app.submit("clerk", "Charge.", run_id=f"old-{number}")
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main())
