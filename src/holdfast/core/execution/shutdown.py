"""Shutdown: signal handlers, and stopping all runs within a bounded time even if the store does not answer."""

import asyncio
import functools
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock, Timer
from holdfast.concurrency import SHUTDOWN_STORE_TIMEOUT, is_main_thread
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.agents.tool_threads import ToolThreads
from holdfast.core.execution.attempt import RunExecution, log

#: After the timeout of a shutdown, the time that tools in threads have to return before their runs are abandoned.
BLOCKED_TOOL_TIMEOUT = timedelta(seconds=10)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Keeps shutdowns that signals started from being garbage collected before they finish.
_shutdown_tasks: set[asyncio.Task[Any]] = set()


def install_signal_handlers(shutdown: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Start `shutdown` on SIGTERM or SIGINT. A second signal has the effect it had before this call.

    Returns a function that removes the handlers.
    """
    loop = asyncio.get_running_loop()
    # An ignored signal stays ignored: a shell starts background processes with SIGINT ignored.
    before = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def remove() -> None:
        for number, handler in before.items():
            if loop.remove_signal_handler(number):
                signal.signal(number, handler)

    def start() -> None:
        remove()
        task = loop.create_task(shutdown())
        _shutdown_tasks.add(task)
        task.add_done_callback(_shutdown_tasks.discard)

    for number in before:
        loop.add_signal_handler(number, start)
    return remove


def can_install_handlers() -> bool:
    """Whether this is the main thread and neither the host nor a web server handles the signals."""
    if not is_main_thread():
        return False
    interrupt = signal.getsignal(signal.SIGINT)
    # The handler of asyncio.run() cancels the main task, which would cancel its run: it may be replaced.
    by_asyncio = isinstance(interrupt, functools.partial) and isinstance(
        getattr(interrupt.func, "__self__", None), asyncio.Runner
    )
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and (
        by_asyncio or interrupt in (signal.default_int_handler, signal.SIG_IGN)
    )


class Drain:
    """Lets runs reach their next step boundary, then stops them, then abandons those that cannot be stopped.

    Those wait for a store that does not answer, or for a tool in a thread that does not return.
    """

    def __init__(
        self, runs: Mapping[str, RunExecution], idle: asyncio.Event, threads: ToolThreads, clock: Clock
    ) -> None:
        """`runs` gets no new ones any more; `idle` is set when it is empty."""
        self._runs, self._idle, self._threads, self._clock = runs, idle, threads, clock
        self._timer: Timer | None = None
        self._thread_timer: Timer | None = None
        #: Whether a run was abandoned whose tool has not returned.
        self.gave_up: bool = False

    async def finish(self, timeout: timedelta) -> None:
        """Return when all runs have stopped."""
        for run in self._runs.values():
            run.drain()
        self._timer = self._clock.call_later(timeout, self._stop_all)
        try:
            await self._idle.wait()
        finally:
            self._timer.cancel()
            if self._thread_timer is not None:
                self._thread_timer.cancel()

    def _stop_all(self) -> None:
        for run in list(self._runs.values()):
            run.stop_for_shutdown()
        self._schedule_check()
        self._thread_timer = self._clock.call_later(BLOCKED_TOOL_TIMEOUT, self._abandon_blocked)
        if blocked := self._list_blocked():
            log.warning(
                "the shutdown waits %d more seconds for tools in threads: %s",
                BLOCKED_TOOL_TIMEOUT.total_seconds(),
                _format_calls(blocked),
            )

    def _list_blocked(self) -> list[ToolContext]:
        return [call for call in self._threads.list_running() if call.run_id in self._runs]

    def _abandon_blocked(self) -> None:
        blocked = self._list_blocked()
        if not blocked:
            return
        self.gave_up = True
        log.error(
            "the shutdown does not wait for these tools any longer, their runs are resumed when this process has "
            "ended: %s",
            _format_calls(blocked),
        )
        for run_id in {call.run_id for call in blocked}:
            self._runs[run_id].abandon_thread()

    def _schedule_check(self) -> None:
        waiting = {run_id for run_id, run in self._runs.items() if run.is_waiting_for_store}
        check = functools.partial(self._abandon_stalled, waiting, len(self._runs))
        self._timer = self._clock.call_later(SHUTDOWN_STORE_TIMEOUT / 2, check)

    def _abandon_stalled(self, waiting: set[str], active_count: int) -> None:
        """Abandon the runs that waited for the store at the last check and still do, unless a run has ended since."""
        stalled = [run_id for run_id in sorted(waiting & self._runs.keys()) if self._runs[run_id].is_waiting_for_store]
        if stalled and len(self._runs) == active_count:
            log.error(
                "the store does not answer, and the shutdown does not wait for it: these runs stay as they were last "
                "saved, and recovery resumes them when this process has ended: %s",
                ", ".join(stalled),
            )
            for run_id in stalled:
                self._runs[run_id].abandon()
        self._schedule_check()


def _format_calls(calls: Sequence[ToolContext]) -> str:
    return ", ".join(f"run {call.run_id}, tool {call.tool}, call {call.call_id}" for call in calls)
