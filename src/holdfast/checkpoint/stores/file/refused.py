"""Writes that the disk refused and could not take back either: whole in the file, and yet nobody was told so."""

import os

from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.lines import SEAL


class Refused:
    """By the name of the run. Each is cut off when the run is next changed from here, before anything is read.

    Taken for saved, it would be in the way of the same save, which its caller makes again.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        #: Where it begins, where it ends, and the end of its last line.
        self._writes: dict[str, tuple[int, int, bytes]] = {}

    def note(self, name: str, at: int, data: bytes) -> None:
        self._writes[name] = at, at + len(data), data[-SEAL:]

    def names(self) -> list[str]:
        return list(self._writes)

    def forget(self, name: str) -> None:
        self._writes.pop(name, None)

    def cut(self, name: str, fd: int) -> None:
        """Under the run's lock. Not if somebody has built on it since, or has removed it."""
        write = self._writes.get(name)
        if write is not None:
            at, end, seal = write
            if os.fstat(fd).st_size == end and os.pread(fd, SEAL, end - SEAL) == seal:
                self._disk.cut(fd, at)
            self.forget(name)
