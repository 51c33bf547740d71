"""Which file is where in the folder, and which version of this format wrote it."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.checkpoint.errors import SchemaTooNew, StoreError
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.temporary import maker_is_dead, temporary_name

#: 2: entries under their kind, and short `saved` lines (see `lines.py`); what version 1 wrote is read as it is.
VERSION = 2
JOURNAL_SUFFIX = ".jsonl"
LOCK_SUFFIX = ".lock"
#: For a file whose maker cannot be seen from here, on another host. Whoever makes one is done in moments; should it go
#: nevertheless, a call fails, and no more.
_LEFTOVER_AFTER = 600.0
#: What decoding raises for bytes that were spoilt: in a string, msgspec does not call it an error of its own.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)


class _Format(msgspec.Struct, kw_only=True):
    format: str = "holdfast file store"
    version: int = VERSION


class Layout:
    """The paths of one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.format = folder / "format.json"
        #: The counter of fencing tokens.
        self.tokens = folder / "tokens"
        #: Grows whenever somebody who waits for a change should look.
        self.changes = folder / "changes"
        #: Touched to ask the file system for its time.
        self.clock = folder / "clock"
        self.runs = folder / "runs"
        self.locks = folder / "locks"
        self.temporary = folder / "temporary"
        self.workers = folder / "workers"
        #: An empty file for each run that was asked to cancel.
        self.cancels = folder / "cancels"
        #: An empty file `parent+child` for each run that was started by another.
        self.children = folder / "children"
        #: For each run that is being removed together with its children, the promise to do so.
        self.removals = folder / "removals"
        self._runs, self._locks, self._removals = str(self.runs), str(self.locks), str(self.removals)

    def journal(self, name: str) -> str:
        """A plain string, as for `lock`: a save asks for it, and a `Path` costs more than opening the file."""
        return f"{self._runs}/{name}{JOURNAL_SUFFIX}"

    def lock(self, name: str) -> str:
        return f"{self._locks}/{name}{LOCK_SUFFIX}"

    def removal(self, name: str) -> str:
        return f"{self._removals}/{name}"

    def worker(self, name: str) -> Path:
        return self.workers / f"{name}.json"

    def child(self, parent: str, child: str) -> Path:
        return self.children / f"{parent}+{child}"

    def new_temporary(self, name: str) -> Path:
        """A path that nobody else uses."""
        return self.temporary / temporary_name(name)

    def run_names(self) -> list[str]:
        return [name.removesuffix(JOURNAL_SUFFIX) for name in os.listdir(self.runs) if name.endswith(JOURNAL_SUFFIX)]

    def children_of(self, parent: str) -> list[str]:
        return [name.partition("+")[2] for name in os.listdir(self.children) if name.startswith(f"{parent}+")]

    def prepare(self, disk: Disk) -> None:
        """Make the folder ready. One that is ready is not written to, so a read-only one can be opened.

        Raises:
            SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
        """
        found = self.version()
        try:
            self._make_folders(disk)
            if found is None:
                self._publish_format(disk)
            elif found < VERSION:
                self._raise_format(disk)
        except OSError:
            if found is None:
                raise

    def version(self) -> int | None:
        """Which version the folder has; `None` if it is none of ours yet."""
        try:
            text = self.format.read_bytes()
        except FileNotFoundError:
            return None
        try:
            found = msgspec.json.decode(text, type=_Format)
        except NOT_JSON as error:
            raise StoreError(f"{self.format} does not say which format this folder has: {error}") from error
        if found.version > VERSION:
            raise SchemaTooNew(str(self.folder), found.version, VERSION)
        return found.version

    def _make_folders(self, disk: Disk) -> None:
        missing = [folder for folder in reversed(self.folder.absolute().parents) if not folder.exists()]
        inner = (self.runs, self.locks, self.temporary, self.workers, self.cancels, self.children, self.removals)
        for folder in (*missing, self.folder, *inner):
            if not folder.exists():
                with contextlib.suppress(FileExistsError):
                    disk.make_folder(folder)
                disk.sync_folder(folder.parent)

    def _publish_format(self, disk: Disk) -> None:
        """Last of all, so that a folder with a format is a whole one."""
        for path in (self.tokens, self.changes, self.clock):
            os.close(disk.open_or_create(path))
        temporary = self.new_temporary("format")
        with created(disk, temporary, msgspec.json.encode(_Format()) + b"\n"), contextlib.suppress(FileExistsError):
            disk.link(temporary, self.format)
        disk.sync_folder(self.folder)

    def _raise_format(self, disk: Disk) -> None:
        """From now on an older holdfast refuses the folder: it would take what is written now for damage."""
        temporary = self.new_temporary("format")
        with created(disk, temporary, msgspec.json.encode(_Format()) + b"\n"):
            disk.replace(temporary, self.format)
            disk.sync_folder(self.folder)

    def remove_leftovers(self, disk: Disk) -> None:
        """Delete the temporary files of processes that died."""
        for path in self.temporary.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if maker_is_dead(path.name) or time.time() - path.stat().st_mtime > _LEFTOVER_AFTER:
                    disk.unlink(path)


@contextlib.contextmanager
def created(disk: Disk, temporary: Path, data: bytes) -> Iterator[None]:
    """A temporary file with `data` in it, safe on disk, for the time of the block."""
    fd = disk.create(temporary)
    try:
        try:
            disk.write(fd, data, 0)
            disk.sync(fd)
        finally:
            os.close(fd)
        yield
    finally:
        disk.unlink(temporary)
