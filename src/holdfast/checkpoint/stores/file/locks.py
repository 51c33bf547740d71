"""One lock file for each run, held while the run is changed and no longer; beside it, how much of the run is safe."""

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.checkpoint.stores.file.disk import AnyPath, Disk, read_at
from holdfast.checkpoint.stores.file.lines import NotALine, sealed, unsealed

_MARK_WIDTH = 192
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02


class LockHeld(Exception):
    """Somebody else holds the lock and did not let go in time."""


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How far a journal was acknowledged.

    Written after the sync and never synced itself, so it is at or behind the truth: what lies below it and cannot be
    read is damage, what lies above it may be torn.
    """

    journal: str
    saved: int
    #: Without syncs, what was acknowledged holds only until the machine goes down: no mark of an earlier boot counts.
    boot: str = ""


_mark = msgspec.json.Decoder(Mark)


@contextlib.contextmanager
def locked(path: AnyPath, disk: Disk, *, patience: float) -> Iterator[int]:
    """Hold the lock at `path`; its file descriptor. Nobody else, in this process or another, is in such a block.

    The file may be unlinked by its holder: whoever waited for it then finds out and takes the new one.

    Raises:
        LockHeld: it was not to be had within `patience` seconds.
    """
    fd = _acquire(path, disk, time.monotonic() + patience)
    try:
        yield fd
    finally:
        # Said aloud: a child that was forked meanwhile has the descriptor too, and closing ours would not free it.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _acquire(path: AnyPath, disk: Disk, deadline: float) -> int:
    pause = _SHORTEST_PAUSE
    while True:
        fd = disk.open_or_create(path)
        try:
            while not _try_lock(fd):
                if time.monotonic() >= deadline:
                    raise LockHeld(str(path))
                time.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
            if _is_at(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


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
    line = sealed(msgspec.json.encode(Mark(journal=journal, saved=saved, boot=boot)))
    # A mark that is missing or behind only makes a later flipped bit harder to tell from a torn write.
    with contextlib.suppress(OSError):
        disk.write(fd, line.rstrip(b"\n").ljust(_MARK_WIDTH - 1) + b"\n", 0)


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
    text = read_at(fd, _MARK_WIDTH, 0)
    try:
        mark = _mark.decode(unsealed(text.rstrip() + b"\n"))
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
