"""Claims outlast whoever asked for them: a caller that is cancelled must not keep what it never got.

A store takes a claim although its caller was cancelled meanwhile. The run would stay with this live process, where no
recovery looks for it, and nobody would drive it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunRecord, RunStatus

T = TypeVar("T")

#: Held until they are done: the event loop itself would let go of them.
_BACKGROUND_TASKS: set[asyncio.Task[None]] = set()


async def shielded_with_undo(awaitable: Awaitable[T], undo: Callable[[T], Coroutine[Any, Any, None]]) -> T:
    """What `taking` gives. If the caller is cancelled meanwhile, that is undone as soon as it is there."""
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        run_in_background(_undo_when_done(task, undo))
        raise


def run_in_background(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Have `work` done without waiting for it: a store that does not answer must not hold up a cancel."""
    task = asyncio.get_running_loop().create_task(work)
    _BACKGROUND_TASKS.add(task)
    task.add_done_callback(_BACKGROUND_TASKS.discard)
    return task


async def _undo_when_done(future: "asyncio.Future[T]", undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait([future])
    if not future.cancelled() and future.exception() is None:
        await undo(future.result())


def restore_previous(record: RunRecord, claim: Claim, now: datetime) -> Release:
    """What leaves a run as `record` shows it, from before it was claimed: that is no strike."""
    status = record.status if record.status in RELEASE_STATUSES else RunStatus.INTERRUPTED
    keep = None if record.expires_at is None else max(record.expires_at - now, timedelta(0))
    return Release(status=status, reason=record.reason, strikes=claim.strikes - 1, retention=keep)
