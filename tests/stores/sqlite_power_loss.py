"""A VFS that records what SQLite does to its files, and the folders that a power cut at any moment may leave.

Of what was not synced, each sector of each write and each change of a file's length may or may not have reached the
disk. A file's name is sure once the file, or a newer one in its folder, was synced: SQLite's own VFS syncs the folder
with a new log. A sector that was not written may hold anything where the file is longer than it was.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import apsw

SECTOR = 512

Kept = Literal["nothing", "everything", "whole writes", "sectors", "the beginning"]
KEPT: tuple[Kept, ...] = ("nothing", "everything", "whole writes", "sectors", "the beginning")


@dataclass(frozen=True)
class Operation:
    """One thing that was done to a file, or a mark that a test made between two of them."""

    what: Literal["create", "write", "truncate", "sync", "delete", "mark"]
    name: str
    offset: int = 0
    data: bytes = b""


class Recording(apsw.VFS):
    """SQLite's own VFS, watched. `lies` are syncs that are claimed and not done."""

    def __init__(self, *, lies: bool = False) -> None:
        self.done: list[Operation] = []
        self.lies = lies
        super().__init__("recording", "unix")

    def mark(self, text: str) -> None:
        self.done.append(Operation("mark", text))

    def xOpen(self, name: "apsw.URIFilename | str | None", flags: list[int]) -> apsw.VFSFile:
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.done.append(Operation("delete", Path(filename).name))
        super().xDelete(filename, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, recording: Recording, name: "apsw.URIFilename | str | None", flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._recording = recording
        self._name = Path(path).name if path else None
        if path and flags[0] & apsw.SQLITE_OPEN_CREATE and not Path(path).exists():
            self._note("create")
        super().__init__("unix", name, flags)

    def _note(self, what: Literal["create", "write", "truncate", "sync"], offset: int = 0, data: bytes = b"") -> None:
        # What has no name is a temporary file: nothing of it is needed after a cut.
        if self._name is not None:
            self._recording.done.append(Operation(what, self._name, offset, data))

    def xWrite(self, data: bytes, offset: int) -> None:
        self._note("write", offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._note("truncate", newsize)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        # Only now: what is written meanwhile by another thread need not be part of it.
        if not self._recording.lies:
            self._note("sync")


@contextmanager
def recorded(*, lies: bool = False) -> Iterator[Recording]:
    """Everything that SQLite opens in this process meanwhile is written down."""
    vfs = Recording(lies=lies)
    apsw.set_default_vfs("recording")
    try:
        yield vfs
    finally:
        apsw.set_default_vfs("unix")
        vfs.unregister()


@dataclass
class _OnDisk:
    """One file: what is sure, and what was done since."""

    sure: bytes = b""
    exists: bool = False
    since: list[Operation] = field(default_factory=list)


class Platter:
    """The disk, as far as it is sure, after the operations so far."""

    def __init__(self) -> None:
        self._files: dict[str, _OnDisk] = {}
        #: Names that were deleted, and may be found again.
        self._doomed: dict[str, _OnDisk] = {}

    def do(self, operation: Operation) -> None:
        name = operation.name
        if operation.what == "delete":
            self._doomed[name] = self._files.pop(name, _OnDisk())
        elif operation.what == "sync":
            file = self._files[name]
            file.sure, file.since = _applied(file.sure, file.since), []
            # The folder is synced with it; a real disk might keep more of what went before, never less.
            file.exists = True
            for other in self._files.values():
                other.exists = True
            self._doomed.clear()
        elif operation.what != "mark":
            self._files.setdefault(name, _OnDisk()).since.append(operation)

    def leave(self, folder: Path, kept: Kept, chance: random.Random) -> None:
        """Write to `folder` what a cut might leave now."""
        folder.mkdir()
        for name, file in (self._doomed | self._files).items():
            there = file.exists and name in self._files
            if there or kept == "everything" or (kept != "nothing" and chance.random() < 0.5):
                left = _applied(file.sure, list(_survivors(file.since, kept, chance)), chance)
                (folder / name).write_bytes(left)


def _survivors(since: list[Operation], kept: Kept, chance: random.Random) -> Iterator[Operation]:
    """The operations, or parts of them, that reached the disk."""
    if kept == "nothing":
        return
    if kept == "the beginning":
        since = since[: chance.randint(0, len(since))]
    likely = chance.random()
    for operation in since:
        if kept in ("everything", "the beginning"):
            yield operation
        elif operation.what != "write" or kept == "whole writes":
            if chance.random() < likely:
                yield operation
        else:
            for start in range(0, len(operation.data), SECTOR):
                if chance.random() < likely:
                    sector = operation.data[start : start + SECTOR]
                    yield Operation("write", operation.name, operation.offset + start, sector)


def _applied(content: bytes, operations: list[Operation], chance: random.Random | None = None) -> bytes:
    """The content after the operations. With `chance`, holes are filled with whatever was on the disk before."""
    result = bytearray(content)
    for operation in operations:
        if operation.what == "truncate":
            del result[operation.offset :]
        elif operation.what == "write":
            hole = operation.offset - len(result)
            if hole > 0:
                result += chance.randbytes(hole) if chance and chance.random() < 0.5 else bytes(hole)
            result[operation.offset : operation.offset + len(operation.data)] = operation.data
    return bytes(result)
