"""One lock file for each run, held while the run is changed and no longer; beside it, how much of the run is safe."""

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.checkpoint.stores.file.disk import AnyPath, Disk
from holdfast.checkpoint.stores.file.lines import NotALine, sealed, unsealed

#: More than any mark is long.
_MARK_WIDTH = 256
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02


class LockHeld(Exception):
    """Somebody else holds the lock and did not let go in time."""

    def __init__(self, path: AnyPath) -> None:
        super().__init__(str(path))


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a journal was acknowledged.

    Written after the sync and never synced itself, so it is at or behind the truth: what lies below it and cannot be
    read is damage, what lies above it may be torn.
    """

    journal: str
    saved: int
    #: Without syncs, what was acknowledged holds only until the machine goes down: no mark of an earlier boot counts.
    boot: str = ""


_encode = msgspec.json.Encoder().encode
_mark = msgspec.json.Decoder(Mark)


class LockFile:
    """A lock that is held. Let go of, it may stay open and be taken again."""

    __slots__ = ("_path", "fd", "stays_open")

    def __init__(self, fd: int, path: AnyPath) -> None:
        self.fd, self._path = fd, path
        #: Whether letting go leaves the file open.
        self.stays_open = False

    def let_go(self) -> None:
        # Said aloud: a child that was forked meanwhile has the descriptor too, and closing ours would not free it.
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        if not self.stays_open:
            os.close(self.fd)

    def take_again(self, *, patience: float) -> None:
        """Raises:
        LockHeld: it was not to be had within `patience` seconds.
        """
        if not _try_lock(self.fd):
            _wait_for_lock(self.fd, self._path, time.monotonic() + patience)

    def is_there(self) -> bool:
        """Whether the file still has its name: else others lock another one."""
        return os.fstat(self.fd).st_nlink > 0


@contextlib.contextmanager
def locked(path: AnyPath, disk: Disk, *, patience: float) -> Iterator[LockFile]:
    """Hold the lock at `path`. Nobody else, in this process or another, is in such a block.

    The file may be unlinked by its holder: whoever waited for it then finds out and takes the new one.

    Raises:
        LockHeld: it was not to be had within `patience` seconds.
    """
    lock = LockFile(_acquire(path, disk, time.monotonic() + patience), path)
    try:
        yield lock
    finally:
        lock.let_go()


def _acquire(path: AnyPath, disk: Disk, deadline: float) -> int:
    while True:
        fd = disk.open_or_create(path)
        try:
            if not _try_lock(fd):
                _wait_for_lock(fd, path, deadline)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _wait_for_lock(fd: int, path: AnyPath, deadline: float) -> None:
    pause = _SHORTEST_PAUSE
    while not _try_lock(fd):
        if time.monotonic() >= deadline:
            raise LockHeld(path)
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: AnyPath) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def write_mark(fd: int, disk: Disk, journal: str, saved: int) -> None:
    """Note in the lock file that the journal is acknowledged up to `saved`."""
    boot = "" if disk.synced else _boot()
    if boot is None:
        return
    line = sealed(_encode(Mark(journal=journal, saved=saved, boot=boot)))
    # A mark that is missing or behind only makes a later flipped bit harder to tell from a torn write.
    with contextlib.suppress(OSError):
        disk.write(fd, line, 0)


def read_mark(path: AnyPath) -> Mark | None:
    """The mark in a lock file that is not held here. To be read before the journal that it speaks of."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return mark_in(fd)
    finally:
        os.close(fd)


def mark_in(fd: int) -> Mark | None:
    """The mark in the lock file, if there is a whole one that still counts."""
    # What follows its line is left of longer ones; those of version 1 were filled up with blanks.
    line = os.pread(fd, _MARK_WIDTH, 0).partition(b"\n")[0].rstrip()
    try:
        mark = _mark.decode(unsealed(line + b"\n"))
    except (NotALine, msgspec.DecodeError):
        return None
    return None if mark.boot and mark.boot != _boot() else mark


@functools.cache
def _boot() -> str | None:
    """Names the time since the machine was started; `None` where that cannot be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
