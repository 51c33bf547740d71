"""Awaiting work that outlives its caller's cancellation, or that has to end within a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock, Timer

log = logging.getLogger("holdfast.run")

#: During a shutdown, the time that a store or a port has to answer.
SHUTDOWN_STORE_TIMEOUT = timedelta(seconds=5)


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


async def run_with_timeout(timeout: timedelta, work: Coroutine[Any, Any, None], clock: Clock) -> bool:
    """Run `work` with a timeout. It is cancelled every `timeout` until it stops. Return False if it was cancelled.

    Raises what `work` raises.
    """
    task = asyncio.ensure_future(work)
    timer: Timer | None = None

    def wait() -> None:
        nonlocal timer
        timer = clock.call_later(timeout, stop)

    def stop() -> None:
        task.cancel()
        wait()

    wait()
    try:
        await asyncio.wait([task])
    finally:
        if timer is not None:
            timer.cancel()
        task.cancel()
    if task.cancelled():
        return False
    task.result()
    return True


async def close_with_timeout(name: str, close: Callable[[], Coroutine[Any, Any, None]], clock: Clock) -> None:
    """Close a store or a port at the end of a shutdown. An error is logged: it must not mask why the host stops."""
    try:
        if not await run_with_timeout(SHUTDOWN_STORE_TIMEOUT, close(), clock):
            log.error("%s does not answer, and was left without being closed", name)
    except Exception as exc:  # a host's own store or port may raise anything
        log.error("%s could not be closed: %s", name, exc, exc_info=exc)
