"""The commands of a program: `python -m bench.scorecard.programs.NAME COMMAND FOLDER [POSTGRES]`.

`submit` starts the run, or does what the system documents for a run with the same id, and prints the result. `work` is
a restarted process that is not given the id. `approve` sends the approval, twice.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from bench.scorecard.ledger import LAST, Ledger

RESULT = f"result of {LAST}"


class Place(NamedTuple):
    """Where a program keeps its runs, and the run that it executes."""

    #: Shared by the processes of a trial.
    folder: Path
    postgres: str
    run_id: str

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / self.run_id)

    @property
    def store(self) -> Path:
        """The folder whose size is the storage of the system."""
        return self.folder / "store"


Command = Callable[[Place], Awaitable[str | None]]


def main(**commands: Command) -> None:
    """Run the command of the command line, and print its result."""
    name, folder, postgres, run_id = sys.argv[1:]
    result = asyncio.run(_call(commands[name], Place(Path(folder), postgres, run_id)))
    if result is not None:
        print(result, flush=True)


async def _call(command: Command, place: Place) -> str | None:
    return await command(place)


async def wait_for_end(ledger: Ledger) -> None:
    """Return a moment after the last effect: no system tells a stranger that a run has ended.

    If the killed process had that effect, it has to come once more: its result was not recorded.
    """
    count = ledger.read().count(LAST)
    while ledger.read().count(LAST) == count:
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)


async def sleep_for_turn(effect: str) -> None:
    """Let the calls of the batch end one after the other, a third of a second apart."""
    await asyncio.sleep(0.3 * int(effect[-1]))
