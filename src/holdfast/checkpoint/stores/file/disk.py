"""The one way to the disk: every change to the folder goes through here, so that tests can record it or let it fail."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import TypeAlias

from holdfast.checkpoint.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable

AnyPath: TypeAlias = str | Path

#: macOS: fsync alone leaves the data in the drive's cache.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
#: Another file would meet them, too: the disk, the folder, or this process is at its end.
_OF_ALL_FILES = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
)


class Disk:
    """Changes files and folders. With `synced=False` nothing waits for the device: a power cut may take it back."""

    def __init__(self, *, synced: bool = True) -> None:
        self.synced = synced

    def create(self, path: AnyPath) -> int:
        """A new file, open for changing. Fails if there is one."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def open(self, path: AnyPath) -> int:
        """The file, open for changing. Fails if there is none."""
        return os.open(path, os.O_RDWR)

    def open_or_create(self, path: AnyPath) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        """All of `data`. If this raises, some of it may be there."""
        rest = memoryview(data)
        while rest:
            count = os.pwrite(fd, rest, offset)
            rest, offset = rest[count:], offset + count

    def cut(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def sync(self, fd: int) -> None:
        """What was written to the file survives a power cut once this returns."""
        if not self.synced:
            return
        if _FULL_SYNC is not None:
            fcntl.fcntl(fd, _FULL_SYNC)
        else:
            os.fdatasync(fd)

    def sync_folder(self, path: AnyPath) -> None:
        """The names in the folder are what they are now, after a power cut too."""
        if not self.synced:
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            # Some file systems have no such thing and keep names safe by themselves.
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(fd)

    def link(self, source: AnyPath, target: AnyPath) -> None:
        """A second name for a file. Fails if the name is taken."""
        os.link(source, target)

    def replace(self, source: AnyPath, target: AnyPath) -> None:
        """The file at `source` is the one at `target` from now on: the old one or the new one, never neither."""
        os.replace(source, target)

    def unlink(self, path: AnyPath) -> None:
        """The name is gone. Fine if it was not there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_folder(self, path: AnyPath) -> None:
        """Fails if it is there."""
        os.mkdir(path)


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Up to `length` bytes from `offset`: fewer only where the file ends."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    while data := os.pread(fd, length - sum(map(len, parts)), offset + sum(map(len, parts))):
        parts.append(data)
    return b"".join(parts)


def of_one_file(error: OSError) -> bool:
    """Whether other files may still be usable: one that is another user's, a bad block, a folder in a file's place."""
    return error.errno not in _OF_ALL_FILES


def store_error(error: OSError, folder: Path) -> StoreError:
    """What the operating system said, as an error of ours that says what to do."""
    where = f"{folder}" if error.filename is None else f"{error.filename}"
    if error.errno in _NO_ROOM:
        return StoreFull(f"no room left for {where}: free space and save again; nothing that was saved is lost")
    if error.errno in _DENIED:
        return StoreDenied(
            f"{where} may not be read or written ({error.strerror}): give this user the right to the whole folder, "
            "and see that its file system is not read-only and knows hard links"
        )
    if error.errno == errno.ENOENT:
        return StoreUnavailable(f"{where} is gone: bring the folder back, or open the store again to start a new one")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailable(f"too many open files ({where}): raise the limit (ulimit -n) or drive fewer runs")
    return StoreUnavailable(f"could not use {where} ({error}): the same call may succeed later")
