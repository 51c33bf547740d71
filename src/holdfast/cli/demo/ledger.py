"""What the demo's agent really did, in a file that the store knows nothing of."""

import os
from pathlib import Path
from typing import Literal

import msgspec

#: `ask`: the model is asked. `start` and `end`: a tool's body. `found`: a call in doubt was looked up.
Deed = Literal["ask", "start", "end", "found"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was done."""

    #: The process that did it, counted from 1.
    life: int
    deed: Deed
    #: The tool call's id, or the number of the question.
    what: str


class Ledger:
    """Written by one process at a time, line by line; what is written has happened, whoever is killed when."""

    def __init__(self, path: Path, life: int = 0) -> None:
        self._path, self._life = path, life

    def write(self, deed: Deed, what: str) -> None:
        line = msgspec.json.encode(Line(life=self._life, deed=deed, what=what)) + b"\n"
        # One call for the whole line: a kill comes before it or after it.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self) -> list[Line]:
        if not self._path.exists():
            return []
        return [msgspec.json.decode(line, type=Line) for line in self._path.read_bytes().splitlines()]

    def has(self, deed: Deed, what: str) -> bool:
        return any(line.deed == deed and line.what == what for line in self.read())
