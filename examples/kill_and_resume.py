"""A script that is killed, is started again, and resumes.

It starts itself as a child process, which kills itself with SIGKILL in the middle of the run, and starts it again.
A ledger outside the store counts the bookings.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast import Agent, App, Reply, ToolCall, tool
from holdfast.core import Message, ToolSchema

CITIES = ["Lisbon", "Porto", "Braga", "Evora", "Faro"]


@tool
def book(city: str) -> str:
    """Book one night. Must not happen twice."""
    with Path("bookings.txt").open("a") as ledger:
        ledger.write(f"{city}\n")
    return f"booked {city}"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """Stands for a provider: books one city after the other."""
    done = sum(isinstance(message, Reply) for message in messages)
    if done == len(CITIES):
        return Reply(text=f"{done} nights are booked.")
    if done == 3 and "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return Reply(tool_calls=[ToolCall(id=f"call-{done}", name="book", arguments={"city": CITIES[done]})])


async def travel() -> None:
    agent = Agent(name="trip", model=model, tools=[book])
    async with App([agent], "sqlite:runs.db") as app:
        result = await app.run("trip", "Five nights in Portugal, please.", run_id="my-trip")
        print(result.output, flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "bookings.txt")
        for argument in ("--die", "--finish"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            killed = child.returncode == -signal.SIGKILL
            print("killed" if killed else "finished", "with", ledger.read_text().split(), "booked")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(travel())
    else:
        main()

# Output:
# killed with ['Lisbon', 'Porto', 'Braga'] booked
# 5 nights are booked.
# finished with ['Lisbon', 'Porto', 'Braga', 'Evora', 'Faro'] booked
