"""A service with its own table: `python host_worker.py FOLDER`. The third call of its tool kills the first process."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.job_table import JobTable

from holdfast import Agent, App, Reply, ToolCall, current_call, tool
from holdfast.core import Message, ToolSchema

FOLDER = Path(sys.argv[1])


@tool
async def book() -> str:
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(f"{current_call().call_id}\n")
    if current_call().call_id == "book-2" and not (FOLDER / "killed").exists():
        (FOLDER / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "booked"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    steps = sum(isinstance(message, Reply) for message in messages)
    if steps < 5:
        return Reply(tool_calls=[ToolCall(id=f"book-{steps}", name="book")])
    return Reply(text=" / ".join(str(getattr(message, "content", "")) for message in messages))


async def main() -> None:
    async with App([Agent(name="clerk", model=model, tools=[book])], JobTable(str(FOLDER / "jobs.db"))) as app:
        print((await app.run("clerk", "Book five.", run_id="r")).output)


if __name__ == "__main__":
    asyncio.run(main())
