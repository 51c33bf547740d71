"""A disk that remembers what was done to it, and the folders that a power cut at any moment may leave of it.

The model is meaner than real file systems: of what was not synced, each sector of each write, each change of a name and
each new length may or may not have reached the disk, in any order. A sync of a file saves its content and not its name;
a sync of a folder saves its names and not what is in them.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.stores.file.disk import AnyPath, Disk

#: Far smaller than real ones, so that a few lines span many.
SECTOR = 16


@dataclass(frozen=True)
class Operation:
    """One thing that was done. `path` is relative to the folder."""

    what: str
    path: str
    #: Which file, told apart over renames. Folders have none.
    file: int | None = None
    target: str = ""
    offset: int = 0
    data: bytes = b""


class Killed(BaseException):
    """Stands for `kill -9`: nothing of the code under test sees to it."""


@dataclass
class RecordingDisk(Disk):
    """Does everything, and writes down what. `leave_out` names syncs that are claimed and not done."""

    folder: Path
    leave_out: Callable[["RecordingDisk", Operation], bool] = lambda disk, operation: False
    done: list[Operation] = field(default_factory=list)
    synced: bool = True
    #: How often a sync was left out: a test that leaves out none proves nothing.
    left_out: int = 0
    #: The next sync of a journal does not happen: the process is gone.
    kill_at_sync: bool = False
    _names: dict[str, int] = field(default_factory=dict)
    _open: dict[int, tuple[str, int]] = field(default_factory=dict)
    _files: int = 0

    def create(self, path: AnyPath) -> int:
        return self._opened(super().create(path), path, new=True)

    def open(self, path: AnyPath) -> int:
        return self._opened(super().open(path), path, new=False)

    def open_or_create(self, path: AnyPath) -> int:
        new = not Path(path).exists()
        return self._opened(super().open_or_create(path), path, new=new)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        super().write(fd, data, offset)
        path, file = self._open[fd]
        self.done.append(Operation("write", path, file, offset=offset, data=bytes(data)))

    def cut(self, fd: int, length: int) -> None:
        super().cut(fd, length)
        path, file = self._open[fd]
        self.done.append(Operation("cut", path, file, offset=length))

    def sync(self, fd: int) -> None:
        path, file = self._open[fd]
        if self.kill_at_sync and path.startswith("runs/"):
            self.kill_at_sync = False
            raise Killed
        self._synced(Operation("sync", path, file))

    def sync_folder(self, path: AnyPath) -> None:
        self._synced(Operation("sync folder", self._relative(path)))

    def link(self, source: AnyPath, target: AnyPath) -> None:
        super().link(source, target)
        self._named(target, self._names[self._relative(source)])

    def replace(self, source: AnyPath, target: AnyPath) -> None:
        super().replace(source, target)
        self._named(target, self._names[self._relative(source)])
        self._named(source, None)

    def unlink(self, path: AnyPath) -> None:
        there = Path(path).exists()
        super().unlink(path)
        if there:
            self._named(path, None)

    def make_folder(self, path: AnyPath) -> None:
        super().make_folder(path)
        self.done.append(Operation("folder", self._relative(path)))

    def last_to(self, path: str) -> str:
        """What was done last to the file."""
        return next(operation.what for operation in reversed(self.done) if operation.path == path)

    def _opened(self, fd: int, path: AnyPath, *, new: bool) -> int:
        name = self._relative(path)
        if new:
            self._files += 1
            self._named(path, self._files)
        self._open[fd] = name, self._names[name]
        self.done.append(Operation("open", name, self._names[name]))
        return fd

    def _named(self, path: AnyPath, file: int | None) -> None:
        name = self._relative(path)
        if file is None:
            del self._names[name]
        else:
            self._names[name] = file
        self.done.append(Operation("name", name, file))

    def _synced(self, operation: Operation) -> None:
        if self.leave_out(self, operation):
            self.left_out += 1
        else:
            self.done.append(operation)

    def _relative(self, path: AnyPath) -> str:
        return os.path.relpath(path, self.folder.parent).partition("/")[2] or "."


@dataclass
class _File:
    safe: bytes = b""
    #: Writes and cuts since the last sync.
    pending: list[Operation] = field(default_factory=list)

    def whole(self) -> bytes:
        content = bytearray(self.safe)
        for operation in self.pending:
            _apply(content, operation)
        return bytes(content)

    def torn(self, chance: random.Random) -> bytes:
        """Of every pending write all, some or no sectors; or a clean prefix of all; or nothing but the new length."""
        how = chance.choice(("sectors", "sectors", "prefix", "length"))
        content = bytearray(self.safe)
        if how == "length":
            return bytes(content.ljust(len(self.whole()), b"\0"))
        last = chance.randrange(len(self.pending) + 1) if how == "prefix" else len(self.pending)
        for operation in self.pending[:last]:
            kept = 1.0 if how == "prefix" else chance.choice((0.0, 0.5, 0.8, 1.0))
            for piece in _sectors(operation):
                if chance.random() < kept:
                    _apply(content, piece)
        if how == "prefix" and last < len(self.pending) and self.pending[last].what == "write":
            torn = self.pending[last]
            length = chance.randrange(len(torn.data) + 1)
            _apply(content, Operation("write", torn.path, torn.file, offset=torn.offset, data=torn.data[:length]))
        return bytes(content)


#: A folder, by path: the content of each file, `None` for a folder.
Image = dict[str, bytes | None]


def lay_out(image: Image, folder: Path) -> None:
    """Make the folder what the image says."""
    for path, content in image.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


class Platter:
    """What is on the disk for certain, and what may be."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        #: For each folder, name to file; 0 stands for a folder.
        self._safe: dict[str, dict[str, int]] = {".": {}}
        #: For each folder, what each name was since the last sync, oldest first.
        self._pending: dict[str, dict[str, list[int | None]]] = {".": {}}

    def do(self, operation: Operation) -> None:
        if operation.what in ("write", "cut"):
            self._files[operation.file or 0].pending.append(operation)
        elif operation.what == "sync":
            file = self._files[operation.file or 0]
            file.safe, file.pending = file.whole(), []
        elif operation.what == "sync folder":
            self._sync_names(operation.path)
        elif operation.what in ("name", "folder"):
            self._name(operation)

    def _name(self, operation: Operation) -> None:
        if operation.path == ".":
            return
        if operation.what == "folder":
            self._safe[operation.path], self._pending[operation.path] = {}, {}
        elif operation.file is not None:
            self._files.setdefault(operation.file, _File())
        parent, _, name = ("./" + operation.path).rpartition("/")
        parent = parent.removeprefix("./") or "."
        value = 0 if operation.what == "folder" else operation.file
        self._pending[parent].setdefault(name, []).append(value)

    def _sync_names(self, path: str) -> None:
        if path in self._pending:
            for name, values in self._pending[path].items():
                self._set(self._safe[path], name, values[-1])
            self._pending[path] = {}

    @staticmethod
    def _set(names: dict[str, int], name: str, value: int | None) -> None:
        names.pop(name, None)
        if value is not None:
            names[name] = value

    def image(self, how: str, chance: random.Random) -> Image:
        """What a cut now may leave: `nothing` or `everything` that is pending, or `some` of it."""
        image: Image = {}
        self._add_folder(image, ".", how, chance)
        return image

    def _add_folder(self, image: Image, path: str, how: str, chance: random.Random) -> None:
        image[path] = None
        names = dict(self._safe[path])
        for name, values in self._pending[path].items():
            if how == "everything":
                self._set(names, name, values[-1])
            elif how == "some":
                known: list[int | None] = [names.get(name), *values]
                self._set(names, name, chance.choice(known))
        for name, value in sorted(names.items()):
            if value == 0:
                self._add_folder(image, name, how, chance)
            else:
                image[f"{path}/{name}"] = self._content(self._files[value], how, chance)

    @staticmethod
    def _content(file: _File, how: str, chance: random.Random) -> bytes:
        if how == "nothing" or not file.pending:
            return file.safe
        return file.whole() if how == "everything" else file.torn(chance)


def _apply(content: bytearray, operation: Operation) -> None:
    if operation.what == "cut":
        del content[operation.offset :]
    else:
        content.extend(bytes(max(0, operation.offset - len(content))))
        content[operation.offset : operation.offset + len(operation.data)] = operation.data


def _sectors(write: Operation) -> Iterator[Operation]:
    """The pieces that reach the disk whole or not at all."""
    if write.what == "cut":
        yield write
        return
    position = write.offset
    end = write.offset + len(write.data)
    while position < end:
        until = min(end, (position // SECTOR + 1) * SECTOR)
        piece = write.data[position - write.offset : until - write.offset]
        yield Operation("write", write.path, write.file, offset=position, data=piece)
        position = until
