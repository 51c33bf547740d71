"""Replacing a small file so that the old one or the new one is there, whatever happens."""

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

#: No write takes so long: a temporary file older than this was left by a process that died.
_STALE_TEMP_SECONDS = 60.0


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` in place of the file. Survives a power cut once this returns.

    Raises:
        OSError: it could not be done. What was there before is there still.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
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


def remove_file(path: Path) -> None:
    """The file is gone, and what unfinished writes of it left. Fine if it was not there."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        remove_stale_temp_files(path, older_than=0.0)
        fsync_dir(path.parent)


def remove_stale_temp_files(path: Path, *, older_than: float = _STALE_TEMP_SECONDS) -> None:
    """Remove what processes that died while they wrote `path` have left."""
    # Not those of `path.json`, which may be written right now.
    unfinished = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.tmp")
    for left in path.parent.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if unfinished.fullmatch(left.name) and time.time() - left.stat().st_mtime >= older_than:
                left.unlink()


def fsync_dir(folder: Path) -> None:
    """The names in the folder are what they are now, after a power cut too."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
