"""SIGTERM and SIGINT as the start of a shutdown.

Bringing all runs to a stop, in a time that is known beforehand even if the store does not answer.
"""

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock, Timer
from holdfast.core.errors import Shutdown
from holdfast.core.execution.run import RunExecution, log

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Keeps the shutdowns that signals began from being collected before they are done.
_shutdown_tasks: set[asyncio.Task[Any]] = set()


def install_signal_handlers(shutdown: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
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
        task = loop.create_task(shutdown())
        _shutdown_tasks.add(task)
        task.add_done_callback(_shutdown_tasks.discard)

    for number in before:
        loop.add_signal_handler(number, begin)
    return undo


def can_install_handlers() -> bool:
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


#: A store that does not take the last words of a run for so long is not waited for any more.
SHUTDOWN_STORE_TIMEOUT = timedelta(seconds=5)


class Drain:
    """Lets runs reach their next step boundary, then stops them, then leaves those that only wait for the store."""

    def __init__(self, runs: Mapping[str, RunExecution], idle: asyncio.Event, clock: Clock) -> None:
        """`live` are the runs under way, among which there are no new ones; `idle` is set when there are none left."""
        self._runs, self._idle, self._clock = runs, idle, clock
        self._timer: Timer | None = None

    async def finish(self, timeout: timedelta) -> None:
        """Return when all runs have stopped."""
        for live in self._runs.values():
            live.draining = True
        self._timer = self._clock.call_later(timeout, self._stop_all)
        try:
            await self._idle.wait()
        finally:
            self._timer.cancel()

    def _stop_all(self) -> None:
        for live in list(self._runs.values()):
            live.stop(Shutdown(f"run {live.info.run_id} was stopped for a shutdown within step {live.state.steps + 1}"))
        self._schedule_check()

    def _schedule_check(self) -> None:
        waiting = {run_id for run_id, live in self._runs.items() if live.is_waiting_for_store}
        under_way = len(self._runs)
        self._timer = self._clock.call_later(
            SHUTDOWN_STORE_TIMEOUT / 2, lambda: self._abandon_stalled(waiting, under_way)
        )

    def _abandon_stalled(self, waiting: set[str], active_count: int) -> None:
        """Leave the runs that wait for the store, as they did at the last look, if not one run has ended since."""
        silent = [run_id for run_id in sorted(waiting & self._runs.keys()) if self._runs[run_id].is_waiting_for_store]
        if silent and len(self._runs) == active_count:
            log.error(
                "the store does not answer, and the shutdown does not wait for it: these runs stay as they were last "
                "saved, and recovery goes on with them when this process has ended: %s",
                ", ".join(silent),
            )
            for run_id in silent:
                self._runs[run_id].abandon()
        self._schedule_check()


async def run_with_timeout(timeout: timedelta, work: Coroutine[Any, Any, None], clock: Clock) -> bool:
    """Do `work`, which is cancelled after `limit`, and again as often as it lasts so long. Returns whether it was not.

    Raises what it raises.
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
    """Close `what`, one of the last things of a host. Trouble is logged: it must not mask why the host stops."""
    try:
        if not await run_with_timeout(SHUTDOWN_STORE_TIMEOUT, close(), clock):
            log.error("%s does not answer, and was left without being closed", name)
    except Exception as exc:  # a host's own store or port may raise anything
        log.error("%s could not be closed: %s", name, exc, exc_info=exc)
