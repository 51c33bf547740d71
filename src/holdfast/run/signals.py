"""SIGTERM and SIGINT as the start of a shutdown."""

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Keeps the shutdowns that signals began from being collected before they are done.
_begun: set[asyncio.Task[Any]] = set()


def on_first_signal(shut_down: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Begin `shut_down` on SIGTERM or SIGINT. A second signal does what it would have done without this.

    Returns a function that takes this back.
    """
    loop = asyncio.get_running_loop()
    # What is ignored stays ignored: a process that a shell put into the background is not meant for Ctrl-C.
    before = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def undo() -> None:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)

    def begin() -> None:
        undo()
        task = loop.create_task(shut_down())
        _begun.add(task)
        task.add_done_callback(_begun.discard)

    for number in before:
        loop.add_signal_handler(number, begin)
    return undo


def unclaimed() -> bool:
    """Whether signals may be handled here and nobody does so yet: neither the host nor a web server it runs in."""
    if threading.current_thread() is not threading.main_thread():
        return False
    interrupt = signal.getsignal(signal.SIGINT)
    # asyncio.run() puts its own handler there, which cancels the main task: a run would take that for a wish to end it.
    by_asyncio = isinstance(interrupt, functools.partial) and isinstance(
        getattr(interrupt.func, "__self__", None), asyncio.Runner
    )
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and (
        by_asyncio or interrupt in (signal.default_int_handler, signal.SIG_IGN)
    )
