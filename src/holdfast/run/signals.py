"""SIGTERM and SIGINT as the start of a shutdown."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

#: Keeps the shutdowns that signals began from being collected before they are done.
_begun: set[asyncio.Task[Any]] = set()


def on_first_signal(shut_down: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Begin `shut_down` on SIGTERM or SIGINT. A second signal does what it would have done without this."""
    loop = asyncio.get_running_loop()

    def begin() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        task = loop.create_task(shut_down())
        _begun.add(task)
        task.add_done_callback(_begun.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin)
