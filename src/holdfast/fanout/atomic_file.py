"""Atomic replacement of a small file: write to a temporary file, fsync, rename."""

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

#: No write takes this long: an older temporary file was left by a process that died.
_STALE_TEMP_SECONDS = 60.0


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of the file. Once this returns it survives a power cut.

    Only the owner can read the file, and the folders that are created for it.

    Raises:
        OSError: the file could not be written. Its old content is unchanged.
    """
    create_folder(path.parent)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fsync_dir(path.parent)


def create_folder(folder: Path) -> None:
    """Create the folder and its parents, readable by the owner only. It may exist."""
    for each in reversed([folder, *folder.parents]):
        each.mkdir(mode=0o700, exist_ok=True)


def remove_file(path: Path) -> None:
    """Remove the file and the temporary files of unfinished writes. The file need not exist."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        remove_stale_temp_files(path, older_than=0.0)
        fsync_dir(path.parent)


def remove_stale_temp_files(path: Path, *, older_than: float = _STALE_TEMP_SECONDS) -> None:
    """Remove temporary files of processes that died while they wrote `path`."""
    # The exact pattern spares the temporary files of `path.json`, which another process may be writing.
    unfinished = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.tmp")
    for temporary in path.parent.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if unfinished.fullmatch(temporary.name) and time.time() - temporary.stat().st_mtime >= older_than:
                temporary.unlink()


def fsync_dir(folder: Path) -> None:
    """Make the current names in the folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
