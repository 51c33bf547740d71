"""The time in which an App is open: it ends by `close`, with its event loop, or in a forked child."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from holdfast.concurrency import run_in_background
from holdfast.core.errors import DefinitionError
from holdfast.runtime.loop_watchdog import LoopWatchdog

log: logging.Logger = logging.getLogger("holdfast.run")


class Lifetime:
    """Calls `close` once: when it is asked to, or when all tasks of the event loop are cancelled, as at its end.

    `asyncio.run` waits for the tasks that it has cancelled. One of them belongs to this class, and waits for `close`.
    """

    def __init__(self, close: Callable[[timedelta | None], Coroutine[Any, Any, None]]) -> None:
        self._close = close
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closing: asyncio.Task[None] | None = None
        self._guard: asyncio.Task[None] | None = None
        self._watchdog = LoopWatchdog()

    @property
    def is_forked(self) -> bool:
        """Whether this is a child of the process that opened the App: threads and sockets are not its own."""
        return os.getpid() != self._pid

    def check_ended(self) -> None:
        """Raise `DefinitionError` if the App is open. An event loop that was closed has taken it along."""
        is_closed = self._closing is not None and self._closing.done()
        if is_closed or self.loop.is_closed() or self.is_forked:
            return
        where = "already: share it, or" if self.loop is asyncio.get_running_loop() else "in another event loop:"
        raise DefinitionError(f"the App is open {where} use App.replace() for a second one")

    def start(self) -> None:
        """Watch the event loop from now on."""
        self._guard = asyncio.create_task(self._wait_for_end(), name="holdfast app")
        self._watchdog.start()

    async def end(self, timeout: timedelta | None = None) -> None:
        """Close the App, and return when it is closed. The timeout of the first call counts."""
        closing = self._start_closing(timeout)
        await asyncio.shield(closing)
        if self._guard is not None:
            self._guard.cancel()

    def _start_closing(self, timeout: timedelta | None) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = run_in_background(self._end(timeout), name="holdfast app closes")
        return self._closing

    async def _end(self, timeout: timedelta | None) -> None:
        try:
            await self._close(timeout)
        finally:
            self._watchdog.stop()

    async def _wait_for_end(self) -> None:
        try:
            await self.loop.create_future()
        except asyncio.CancelledError:
            if self.is_forked:
                log.error(
                    "a forked child cannot end the event loop of its parent: end it with sys.exit() or os._exit()"
                )
                os._exit(1)
            while not (closing := self._start_closing(None)).done():
                try:
                    await asyncio.wait([closing])
                except asyncio.CancelledError:
                    log.warning("the event loop is ending: closing the App")
            raise
