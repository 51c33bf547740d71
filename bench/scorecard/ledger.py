"""The ledger outside of all systems: each effect of the program, in order, and the place where the process is killed.

Standard library only: the environments of the systems have nothing else in common.
"""

import os
import signal
from pathlib import Path

#: The effects of the program, in order: three pure steps, a payment that a person approves, a parallel batch, and the
#: calls of the model between them.
EFFECTS = (
    *("model-1", "look-a", "look-b", "look-c", "model-2", "pay", "model-3"),
    *("fetch-1", "fetch-2", "fetch-3", "model-4"),
)
#: Every place where a process is killed.
POINTS = tuple(f"{when} {effect}" for effect in EFFECTS for when in ("before", "after"))
BATCH = EFFECTS[7:10]
LAST = EFFECTS[-1]


class Ledger:
    """The effects that a run has had, over all its processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._effects, self._kill, self._reported = folder / "effects", folder / "kill", folder / "reported"

    def plan_kill(self, point: str) -> None:
        """Kill the first process that reaches the point, once."""
        self._kill.write_text(point)

    @property
    def is_kill_pending(self) -> bool:
        """Whether no process has reached the point yet."""
        return self._kill.exists()

    def perform(self, effect: str) -> str:
        """Have the effect, and return its result."""
        self._die_at(f"before {effect}")
        with self._effects.open("a") as file:
            file.write(f"{effect}\n")
        self._die_at(f"after {effect}")
        return f"result of {effect}"

    def report_unknown(self) -> None:
        """Note that the system says that it does not know whether the payment was made."""
        self._reported.touch()

    @property
    def is_unknown_reported(self) -> bool:
        return self._reported.exists()

    def read(self) -> list[str]:
        return self._effects.read_text().split() if self._effects.exists() else []

    def _die_at(self, point: str) -> None:
        if self._kill.exists() and self._kill.read_text() == point:
            self._kill.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
