"""Driving runs from a command, so that Ctrl-C and SIGTERM leave them resumable."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeVar

from holdfast.app import App
from holdfast.cli.progress import Watcher
from holdfast.cli.stores import waiting_is_told

_T = TypeVar("_T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def drive(
    app: App, watcher: Watcher, work: Callable[[], Awaitable[_T]], *, stopped_at_once: Callable[[], None]
) -> _T:
    """Open the App, do `work` and close it. A signal begins the App's shutdown, a second one ends the process.

    The process ends then without another word to the store, as after `kill -9`: the run has saved its finished steps,
    and whatever would be politer needs a run that listens.

    Args:
        stopped_at_once: called before the process is ended.
    """
    loop = asyncio.get_running_loop()
    shutdowns: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if not shutdowns:
            shutdowns.append(loop.create_task(app.shutdown()))
            watcher.say("stopping after the current step; once more stops at once", "yellow")
            return
        watcher.stop()
        stopped_at_once()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    try:
        async with AsyncExitStack() as stack:
            with waiting_is_told():
                await stack.enter_async_context(app)
            for number in _SIGNALS:
                loop.add_signal_handler(number, on_signal)
            return await work()
    finally:
        await asyncio.gather(*shutdowns)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
