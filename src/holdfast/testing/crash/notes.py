"""What the processes of a crash test write down, outside the store, for the judge to read."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint.journal import Entry
from holdfast.run.usage import Usage


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that happened in one life of the run. A life is one process that drives it; the first is number 0."""

    life: int = 0


class Reached(Note, frozen=True, kw_only=True):
    """A crash point was passed."""

    point: str
    #: A later run crashes at this point when it meets the first of these marks.
    marks: Sequence[str]


class Crashed(Note, frozen=True, kw_only=True):
    """The process kills itself now, here."""

    point: str


class Began(Note, frozen=True, kw_only=True):
    """A run was begun or taken up again."""

    run_id: str
    #: The call that started it, if it is a child.
    parent_run_id: str | None = None
    call_id: str | None = None


class Asked(Note, frozen=True, kw_only=True):
    """A model was asked, and shown a conversation of a run; the key stands for all of it."""

    run_id: str
    key: str
    #: The place of the conversation among those of the run: there is one for each phase.
    phase: int
    #: Where the messages begin that are new since the model was last asked.
    start: int
    messages: Sequence[bytes]


class Replied(Note, frozen=True, kw_only=True):
    """What the model said to that."""

    run_id: str
    phase: int
    message: bytes


class Started(Note, frozen=True, kw_only=True):
    """The body of a tool begins."""

    run_id: str
    step: int
    call_id: str
    tool: str
    #: Empty where it is known only after the call: then `Effected` tells.
    effect: str


class Effected(Note, frozen=True, kw_only=True):
    """What kind of effect a call has that another loop than the native one made."""

    run_id: str
    call_id: str
    effect: str


class Said(Note, frozen=True, kw_only=True):
    """A model of another loop has replied, in this step."""

    run_id: str
    step: int


class Returned(Note, frozen=True, kw_only=True):
    """The body of a tool has returned; its result is not recorded yet."""

    run_id: str
    step: int
    call_id: str


class Reconciled(Note, frozen=True, kw_only=True):
    """A tool's `reconcile` has said what became of a call."""

    run_id: str
    step: int
    call_id: str
    happened: bool
    did_not_happen: bool


class Acknowledged(Note, frozen=True, kw_only=True):
    """The store has said that it wrote these entries, or that it removed the run."""

    run_id: str
    entries: Sequence[Entry] = ()
    replace: bool = False
    removed: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished call of another loop than the native one."""

    call_id: str
    body: bytes


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is in the store."""

    run_id: str
    status: str
    reason: str
    entries: Sequence[Entry] = ()
    #: Finished steps.
    steps: int = 0
    #: For another loop than the native one: the finished calls, and how many replies there are.
    answers: Sequence[Answer] | None = None
    replies: int = 0


class Found(Note, frozen=True, kw_only=True):
    """What was in the store when this life began."""

    journals: Sequence[Journal]


class Closing(Note, frozen=True, kw_only=True):
    """A run of another loop as it is just before it is over."""

    journal: Journal


class Parked(Note, frozen=True, kw_only=True):
    """The run was parked, and is unparked now."""

    reason: str


class Counted(Note, frozen=True, kw_only=True):
    """What a run has used so far, as its budget is told."""

    run_id: str
    steps: int
    own: Usage
    children: Usage


class Delivered(Note, frozen=True, kw_only=True):
    """The tested run came to its end, with this output."""

    output: Any


class Left(Note, frozen=True, kw_only=True):
    """What was in the store when this life had ended in peace."""

    journals: Sequence[Journal]


AnyNote = (
    Reached | Crashed | Began | Asked | Replied | Said | Started | Returned | Effected | Reconciled | Acknowledged
    | Found | Closing | Parked | Counted | Delivered | Left
)  # fmt: skip


class Notebook:
    """An append-only file that one process at a time writes and that outlives it. Any thread may write."""

    def __init__(self, path: Path, life: int) -> None:
        self._life = life
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()

    def write(self, note: AnyNote) -> None:
        """Once this returns, the note survives `kill -9`: it is with the operating system, in one piece."""
        line = memoryview(msgspec.json.encode(msgspec.structs.replace(note, life=self._life)) + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._file, line) :]


def read_notes(path: Path) -> list[AnyNote]:
    """All notes, in the order in which they were written."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=AnyNote) for line in path.read_bytes().splitlines()]
