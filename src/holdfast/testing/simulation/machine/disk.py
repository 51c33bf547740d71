"""A simulated disk: SQLite's own file layer, which knows what was synced, fails on demand, and can lose power."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import apsw

from holdfast.testing.simulation.machine.scheduler import ProcessDied, Scheduler

SECTOR = 512

#: What of the unsynced writes a power cut keeps.
Kept = Literal["nothing", "everything", "writes", "sectors"]
DiskFault = Literal["io_error", "full", "short_write", "kill"]


class _Write:
    """A change that was not synced: what was there before, and what is there now."""

    __slots__ = ("data", "offset", "old", "old_size", "size")

    def __init__(self, offset: int, data: bytes | None, old: bytes, old_size: int, size: int) -> None:
        self.offset, self.data, self.old, self.old_size, self.size = offset, data, old, old_size, size


class SimulatedDisk(apsw.VFS):
    """A VFS over `unix`. Files belong to the simulated process that opened them."""

    def __init__(self, name: str, folder: Path, scheduler: Scheduler, seed: int, *, may_lose_power: bool) -> None:
        super().__init__(name, "unix")
        self.name, self.folder = name, folder
        self._scheduler = scheduler
        self._random = random.Random(seed)
        #: Whether it refuses all calls: its world has ended.
        self.is_dead = False
        #: Else it does not keep what was not synced.
        self.may_lose_power = may_lose_power
        #: By path: the changes since the last sync.
        self.unsynced: dict[str, list[_Write]] = {}
        #: Decides before each write and sync whether it fails.
        self.choose_fault: Callable[[], DiskFault | None] | None = None
        #: Returns how long a write or sync takes.
        self.choose_delay: Callable[[], float] | None = None

    def xOpen(self, name: "apsw.URIFilename | str | None", flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        self.check_alive()
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.before_call()
        self.unsynced.pop(filename, None)
        super().xDelete(filename, syncdir)

    def excepthook(self, etype: object, evalue: object, etraceback: object) -> bool:
        """Print nothing: SQLite has returned an error for it."""
        return True

    def check_alive(self) -> None:
        process = self._scheduler.process
        if self.is_dead or (process is not None and not process.is_alive):
            raise ProcessDied

    def before_call(self) -> bool:
        """Fail, wait or die as the plan says. Return whether only a part is to be written."""
        self.check_alive()
        process = self._scheduler.process
        if process is None:
            return False
        if self.choose_delay is not None and (delay := self.choose_delay()) > 0 and process.threads.in_thread:
            process.threads.sleep(delay)
        fault = self.choose_fault() if self.choose_fault is not None else None
        if fault == "kill":
            process.kill()
            raise ProcessDied
        if fault == "io_error":
            raise apsw.IOError("simulated")
        if fault == "full":
            raise apsw.FullError("simulated")
        return fault == "short_write"

    # -- power ---------------------------------------------------------------------------------------------------

    def cut_power(self, kept: Kept) -> None:
        """Lose what was not synced, or a part of it. All connections have to be closed or dead."""
        for path, writes in self.unsynced.items():
            if writes and os.path.exists(path):
                self._lose(Path(path), writes, kept)
        self.unsynced.clear()
        for index in self.folder.glob("*-shm"):
            index.unlink()

    def _lose(self, path: Path, writes: list[_Write], kept: Kept) -> None:
        content = bytearray(path.read_bytes())
        for write in reversed(writes):
            del content[write.old_size :]
            content.extend(bytes(write.old_size - len(content)))
            content[write.offset : write.offset + len(write.old)] = write.old
        for write in writes:
            if kept == "nothing" or (kept != "everything" and self._random.random() < 0.5):
                continue
            if write.data is None:
                del content[write.size :]
                continue
            content.extend(bytes(max(0, write.offset + len(write.data) - len(content))))
            for start in range(0, len(write.data), SECTOR):
                if kept != "sectors" or self._random.random() < 0.5:
                    sector = write.data[start : start + SECTOR]
                    content[write.offset + start : write.offset + start + len(sector)] = sector
        path.write_bytes(content)


class _File(apsw.VFSFile):
    def __init__(self, disk: SimulatedDisk, name: "apsw.URIFilename | str | None", flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._disk = disk
        self._path = path or ""
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk.before_call():
            data = bytes(data)[: len(data) // 2]
            self._write(data, offset)
            raise apsw.IOError("simulated: a short write")
        self._write(bytes(data), offset)

    def _write(self, data: bytes, offset: int) -> None:
        if self._path and self._disk.may_lose_power:
            size = self.xFileSize()
            old = self.xRead(min(len(data), size - offset), offset) if offset < size else b""
            new_size = max(size, offset + len(data))
            self._disk.unsynced.setdefault(self._path, []).append(_Write(offset, data, old, size, new_size))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.before_call()
        if self._path and self._disk.may_lose_power:
            size = self.xFileSize()
            old = self.xRead(size - newsize, newsize) if newsize < size else b""
            self._disk.unsynced.setdefault(self._path, []).append(_Write(newsize, None, old, size, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.before_call()
        self._disk.unsynced.pop(self._path, None)
