"""Claims outlast whoever asked for them: a caller that is cancelled must not keep what it never got.

A store takes a claim although its caller was cancelled meanwhile. The run would stay with this live process, where no
recovery looks for it, and nobody would drive it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.lifecycle import ENDINGS, Status
from holdfast.checkpoint.record import Ending, RunRecord

T = TypeVar("T")

#: Held until they are done: the event loop itself would let go of them.
_UNDER_WAY: set[asyncio.Task[None]] = set()


async def seen_through(taking: Awaitable[T], undo: Callable[[T], Coroutine[Any, Any, None]]) -> T:
    """What `taking` gives. If the caller is cancelled meanwhile, that is undone as soon as it is there."""
    task = asyncio.ensure_future(taking)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        in_background(_undone(task, undo))
        raise


def in_background(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Have `work` done without waiting for it: a store that does not answer must not hold up a cancel."""
    task = asyncio.get_running_loop().create_task(work)
    _UNDER_WAY.add(task)
    task.add_done_callback(_UNDER_WAY.discard)
    return task


async def _undone(taking: "asyncio.Future[T]", undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait([taking])
    if not taking.cancelled() and taking.exception() is None:
        await undo(taking.result())


def as_it_was(record: RunRecord, claim: Claim, now: datetime) -> Ending:
    """What leaves a run as `record` shows it, from before it was claimed: that is no strike."""
    status = record.status if record.status in ENDINGS else Status.INTERRUPTED
    keep = None if record.expires_at is None else max(record.expires_at - now, timedelta(0))
    return Ending(status=status, reason=record.reason, strikes=claim.strikes - 1, keep=keep)
