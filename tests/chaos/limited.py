"""A worker whose runs need one of as many locks as the limit allows: `python -m tests.chaos.limited URL FOLDER`.

The locks are the kernel's, which drops those of a killed process. So a run that finds no free lock proves that more
runs execute than the limit allows.
"""

import asyncio
import fcntl
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Reply, ToolCall, WorkerSettings, tool
from holdfast.core import Message, ToolSchema

AGENT = "limited"
MAX_RUNS = 2
STEPS = 3


def try_lock(folder: Path) -> int | None:
    """Return the descriptor of a locked file; `None` if all locks are taken."""
    for number in range(MAX_RUNS):
        lock = os.open(folder / f"lock-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
        else:
            return lock
    return None


def make_agent(folder: Path) -> Agent:
    def write(line: str) -> None:
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{line}\n")

    @tool(effect="idempotent")
    async def hold() -> str:
        """Hold a lock for a moment."""
        lock = try_lock(folder)
        if lock is None:
            write("exceeded")
            return "exceeded"
        write("held")
        await asyncio.sleep(0.02)  # long enough that other runs come meanwhile
        os.close(lock)
        return "held"

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        done = sum(isinstance(message, Reply) for message in messages)
        if done == STEPS:
            return Reply(text="done")
        return Reply(tool_calls=[ToolCall(id=f"c{done}", name="hold")])

    return Agent(name=AGENT, model=model, tools=[hold])


async def main(url: str, folder: Path) -> None:
    async with App([make_agent(folder)], url, worker=WorkerSettings(concurrency=4)) as app:
        await app.serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
