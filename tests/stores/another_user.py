"""For tests that become another user."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def traversable(folders: list[Path]) -> Iterator[None]:
    """pytest's folders are closed to other users, and as root the test becomes another user."""
    if os.getuid() != 0:
        yield
        return
    modes = {folder: mode for folder in folders if (mode := folder.stat().st_mode) & 0o111 != 0o111}
    for folder, mode in modes.items():
        folder.chmod(mode | 0o111)
    try:
        yield
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)
