"""Ends a worker that has grown too large, so that its supervisor starts a new one."""

import asyncio
import re
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.app import App
from holdfast.cli.errors import UsageError
from holdfast.cli.progress import ProgressListener

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_CHECK_INTERVAL_S = 1.0


def parse_size(given: str) -> int:
    """Return the bytes of a size such as `800M` or `1.5G`.

    Raises:
        UsageError: it has another form.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", given.strip(), re.IGNORECASE)
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if size < 1:
        raise UsageError(f"--max-memory {given!r} is not valid: give a size such as 800M or 2G")
    return size


def read_memory() -> int:
    """Return the bytes of memory that this process occupies; where the system does not tell, at its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


@asynccontextmanager
async def drain_over_memory(app: App, limit: int, listener: ProgressListener) -> AsyncIterator[None]:
    """Shut the App down when the process occupies more than `limit` bytes, while the context is open."""
    draining = False

    async def watch() -> None:
        nonlocal draining
        # First the pause: a worker with too low a limit gets some work done between two restarts.
        await asyncio.sleep(_CHECK_INTERVAL_S)
        while read_memory() <= limit:  # noqa: ASYNC110 - the system sends no event
            await asyncio.sleep(_CHECK_INTERVAL_S)
        listener.print_status(f"over {limit >> 20} MB of memory: stopping after the current step", "yellow")
        draining = True
        await app.shutdown()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        if not draining:
            task.cancel()
        await asyncio.wait([task])
