"""Research: a workflow plans, three agents search at the same time as child runs, and a report is published.

It starts itself as child processes in a folder of its own. All but the last are killed with SIGKILL. A ledger outside
the store has every model call, search and publication. What an agent has finished is not repeated.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Reply, ToolCall, ToolResult, User, current_call, tool
from holdfast.core import Message, ToolSchema
from holdfast.workflows import run_agent, workflow

LEDGER = Path("ledger.txt")


def act(line: str) -> None:
    """Let it happen, outside of the store. The argument of the process says where it is killed."""
    kill_at(f"before {line}")
    with LEDGER.open("a") as ledger:
        ledger.write(f"{line}\n")
    kill_at(f"after {line}")


def kill_at(point: str) -> None:
    if sys.argv[1:] == [point]:
        os.kill(os.getpid(), signal.SIGKILL)


@tool(effect="pure")
async def search(words: str) -> str:
    """Search the web."""
    act(f"search {words}")
    return f"three pages about {words}"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a provider: searches once, then sums up."""
    topic = next(str(message.text) for message in messages if isinstance(message, User))
    found = [message.content for message in messages if isinstance(message, ToolResult)]
    if not found:
        act(f"ask about {topic}")
        return Reply(tool_calls=[ToolCall(id="search", name="search", arguments={"words": topic})])
    act(f"sum up {topic}")
    return Reply(text=f"{topic}: {found[0]}")


searcher = Agent(name="searcher", model=model, tools=[search])


@tool(effect="pure")
async def plan(question: str) -> list[str]:
    """Stands for a model that plans."""
    return [f"{question} in {place}" for place in ("Lisbon", "Porto", "Faro")]


@tool(effect="idempotent")
async def publish(report: str) -> str:
    """The site knows a report by its key, and publishes it once."""
    act(f"publish under {current_call().idempotency_key}")
    return f"published:\n{report}"


@workflow
async def research(question: str) -> str:
    topics = await plan(question)
    answers = await asyncio.gather(*(run_agent(searcher, topic) for topic in topics))
    published: str = await publish("\n".join(answers))
    return published


async def execute() -> None:
    async with App([research, searcher], "sqlite:runs.db") as app:
        print((await app.run(research, "tea", run_id="tea")).output, flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("before search tea in Porto", "after sum up tea in Faro", "to the end"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            print("killed" if child.returncode == -signal.SIGKILL else "finished", argument, flush=True)
        lines = Path(folder, LEDGER).read_text().splitlines()
        print("published", sum(line.startswith("publish") for line in lines), "time")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(execute())
    else:
        main()

# Output:
# killed before search tea in Porto
# killed after sum up tea in Faro
# published:
# tea in Lisbon: three pages about tea in Lisbon
# tea in Porto: three pages about tea in Porto
# tea in Faro: three pages about tea in Faro
# finished to the end
# published 1 time
