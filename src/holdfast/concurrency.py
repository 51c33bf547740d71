"""Work that is seen through to its end, whoever cancels the one who waits for it."""

import asyncio
from collections.abc import Awaitable
from typing import Any


async def shielded(work: Awaitable[Any], *, suppress_cancel: bool = False) -> None:
    """See `work` through to its end. A cancel of the caller meanwhile is raised then, or swallowed."""
    task = asyncio.ensure_future(work)
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancel = exc
        except BaseException:  # of the work itself: raised below, unless a cancel goes first
            break
    if cancel is not None and not suppress_cancel:
        if not task.cancelled():
            task.exception()  # seen; the cancel is what comes out
        raise cancel
    task.result()
