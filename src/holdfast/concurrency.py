"""Asyncio helpers for work that must finish although its caller is cancelled, or that must end within a time."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from holdfast.clock import Clock, Timer

T = TypeVar("T")

log: logging.Logger = logging.getLogger("holdfast.run")

#: Keeps tasks from being garbage-collected: the event loop holds only weak references.
_BACKGROUND_TASKS: set[asyncio.Task[None]] = set()

#: During a shutdown, the time that a store or a port has to answer.
SHUTDOWN_STORE_TIMEOUT = timedelta(seconds=5)


async def shielded(work: Awaitable[Any], *, suppress_cancel: bool = False) -> None:
    """Wait until `work` is done. A cancel of the caller meanwhile is raised afterwards, or suppressed."""
    task = asyncio.ensure_future(work)
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancel = exc
        except BaseException:  # of `work`: raised below, unless the caller was cancelled
            break
    if cancel is not None and not suppress_cancel:
        if not task.cancelled():
            task.exception()  # mark as retrieved: the cancel is raised instead
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


async def shielded_with_undo(awaitable: Awaitable[T], undo: Callable[[T], Coroutine[Any, Any, None]]) -> T:
    """Return the result of `awaitable`. If the caller is cancelled first, undo the result when it arrives.

    A store may grant a claim after its caller was cancelled. Without the undo the run would keep a live owner that
    does not execute it.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        run_in_background(_undo_when_done(task, undo))
        raise


async def _undo_when_done(future: "asyncio.Future[T]", undo: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    await asyncio.wait([future])
    if not future.cancelled() and future.exception() is None:
        await undo(future.result())


def run_in_background(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start `work` without waiting for it: an unresponsive store must not delay a cancel."""
    task = asyncio.get_running_loop().create_task(work)
    _BACKGROUND_TASKS.add(task)
    task.add_done_callback(_BACKGROUND_TASKS.discard)
    return task
