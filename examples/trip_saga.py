"""A trip as a saga: flight, hotel and car are booked one after the other. If one fails, the others are cancelled again.

It starts itself as child processes in a folder of its own. All but the last are killed with SIGKILL, each in the middle
of another booking or cancellation. A ledger outside the store has what really happened.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from holdfast import NOT_EXECUTED, App, Completed, tool
from holdfast.core import ToolContext
from holdfast.workflows import saga, workflow

LEDGER = Path("ledger.txt")


class SoldOut(Exception):
    pass


def act(line: str) -> None:
    """Let it happen, outside of the store. The argument of the process says where it is killed."""
    kill_at(f"before {line}")
    with LEDGER.open("a") as ledger:
        ledger.write(f"{line}\n")
    kill_at(f"after {line}")


def kill_at(point: str) -> None:
    if sys.argv[1:] == [point]:
        os.kill(os.getpid(), signal.SIGKILL)


def has_happened(line: str) -> bool:
    return LEDGER.exists() and line in LEDGER.read_text().splitlines()


async def find_booking(call: ToolContext) -> Any:
    """Ask the agency, after a crash, whether the booking was made."""
    line = f"book {call.arguments['what']}"
    return Completed(f"ticket for the {call.arguments['what']}") if has_happened(line) else NOT_EXECUTED


async def cancel(call: ToolContext, ticket: str) -> None:
    """Cancel a booking. After a crash it may be asked for twice; the agency cancels once."""
    line = f"cancel {call.arguments['what']}"
    if not has_happened(line):
        act(line)


@tool(reconcile=find_booking, undo=cancel, errors=[SoldOut])
async def book(what: str) -> str:
    """Must not happen twice."""
    if what == "car":
        raise SoldOut("there is no car left")
    act(f"book {what}")
    return f"ticket for the {what}"


@workflow
async def travel(city: str) -> str:
    try:
        async with saga():  # what it has booked is undone if it is left by an exception
            tickets = [await book(what) for what in ("flight", "hotel", "car")]
    except SoldOut as error:
        return f"no trip to {city}: {error}"
    return f"{len(tickets)} tickets to {city}"


async def execute() -> None:
    async with App([travel], "sqlite:runs.db") as app:
        print((await app.run(travel, "Porto", run_id="trip-1")).output, flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("after book flight", "before book hotel", "after cancel hotel", "to the end"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            ended = "killed" if child.returncode == -signal.SIGKILL else "finished"
            print(f"{ended} {argument}: {', '.join(Path(folder, LEDGER).read_text().splitlines())}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(execute())
    else:
        main()

# Output:
# killed after book flight: book flight
# killed before book hotel: book flight
# killed after cancel hotel: book flight, book hotel, cancel hotel
# no trip to Porto: there is no car left
# finished to the end: book flight, book hotel, cancel hotel, cancel flight
