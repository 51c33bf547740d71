"""Telling other processes that something changed: a file whose size they look at."""

import contextlib
import os
from pathlib import Path

from holdfast.checkpoint.stores.file.disk import Disk

_LONGEST = 4096


class Signals:
    """A sign that is missed does no harm, so it is never synced and failures to give one are passed over."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path, self._disk = path, disk

    def give(self) -> None:
        with contextlib.suppress(OSError):
            fd = self._disk.open_or_create(self._path)
            try:
                size = os.fstat(fd).st_size
                if size >= _LONGEST:
                    self._disk.cut(fd, 0)
                else:
                    self._disk.write(fd, b".", size)
            finally:
                os.close(fd)

    def last(self) -> tuple[int, int]:
        """Differs from an earlier one if a sign was given meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            seen = self._path.stat()
            return seen.st_size, seen.st_mtime_ns
        return 0, 0
