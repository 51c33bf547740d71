"""Why and how attempts stop: the stop state of one, its pauses, the drain of a shutdown, and signals."""

import asyncio
import functools
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock, Timer
from holdfast.concurrency import SHUTDOWN_STORE_TIMEOUT, is_main_thread
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.agents.tool_threads import ToolThreads
from holdfast.core.errors import RunCancelled, RunInterrupted, Shutdown
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd, classify_error

if TYPE_CHECKING:
    from holdfast.core.execution.attempt import Attempt

log: logging.Logger = logging.getLogger("holdfast.run")


class StopCause(IntEnum):
    """What stops a run, weakest first. A stronger cause replaces a weaker one; of equal causes the first stands."""

    #: The run continues.
    NONE = 0
    #: A tool call raised an error that fails the run. Its sibling calls are being cancelled.
    CALL_FAILED = 1
    #: A tool call or a child run raised an error that leaves the run resumable. Sibling calls are being cancelled.
    CALL_INTERRUPTED = 2
    #: `Attempt.stop` was called: by a timer, a critic, a cancelled caller, a newer claim, a shutdown.
    STOPPED = 3


class StopState:
    """The cause and error of an attempt's stop, and the two requests of a shutdown, which combine with every cause.

    From the first cause on the attempt is stopping: the error of a call that is cancelled then is not its result.
    """

    __slots__ = (
        "_clock",
        "_pauses",
        "_run_id",
        "_shutdown_exceptions",
        "_state",
        "abandoned",
        "calls_in_progress",
        "cause",
        "draining",
        "error",
        "is_end_seen",
        "is_stopped",
        "is_stopping",
        "is_undoing",
        "undo_error",
    )

    def __init__(
        self, run_id: str, state: RunState, clock: Clock, shutdown_exceptions: tuple[type[BaseException], ...] = ()
    ) -> None:
        self._run_id, self._state, self._clock = run_id, state, clock
        self._shutdown_exceptions = shutdown_exceptions
        self.cause: StopCause = StopCause.NONE
        #: `None` exactly if the cause is `NONE`.
        self.error: BaseException | None = None
        self.is_stopping: bool = False
        self.is_stopped: bool = False
        #: The run ends for good, and its steps are undone first.
        self.is_undoing: bool = False
        #: The code whose steps a cancel undoes has got to know of its end for good.
        self.is_end_seen: bool = False
        #: What had stopped it before that.
        self.undo_error: BaseException | None = None
        #: The host shuts down: the run stops at its next step boundary.
        self.draining: bool = False
        #: The store did not answer within the timeout of a shutdown: nothing more is written for this run.
        self.abandoned: bool = False
        #: Tool calls that were started and whose results are not recorded. Those that pause are among them.
        self.calls_in_progress = 0
        #: The pauses before retries. Each is resolved when it ends: True if a shutdown ends it.
        self._pauses: list[asyncio.Future[bool]] = []

    def record(self, cause: StopCause, error: BaseException) -> bool:
        """Set cause and error if `cause` is stronger than the current one. Return whether it is."""
        if cause <= self.cause or (self.is_undoing and not self.is_resumable_after(error)):
            return False
        self.cause, self.error = cause, error
        self.is_stopping, self.is_stopped = True, cause is StopCause.STOPPED
        return True

    def begin_undo(self, error: BaseException | None = None) -> None:
        """Let a run that ends for good undo its steps. From now on only an interruption or a lost claim stops it.

        Args:
            error: of the stop. `None`: that of this attempt, if it was stopped.
        """
        self.undo_error = self.undo_error or error or self.error
        self.is_undoing, self.cause, self.error = True, StopCause.NONE, None
        self.is_stopping = self.is_stopped = False

    def record_call_error(self, error: BaseException) -> None:
        """Record that a tool call stops the run with `error`, before its sibling calls are cancelled."""
        if not self.record_interruption(error):
            self.record(StopCause.CALL_FAILED, error)

    def record_interruption(self, error: BaseException) -> bool:
        """Record the error of a tool call if it interrupts the run. Return whether it does."""
        resumable = self.is_resumable_after(error)
        if resumable:
            self.record(StopCause.CALL_INTERRUPTED, error)
        return resumable

    def classify_error(self, error: BaseException | None) -> AttemptEnd:
        """Return how the attempt ends if it ends with `error`."""
        return classify_error(error, self._shutdown_exceptions)

    def is_resumable_after(self, error: BaseException) -> bool:
        """Whether another attempt, here or elsewhere, continues the run when it stops with `error`."""
        return not self.classify_error(error).is_terminal

    def raise_if_stopped(self) -> None:
        """Stop here, between two steps, if the attempt was stopped or the host shuts down."""
        if self.error is not None and self.is_stopped:
            raise self.error
        if self.draining:
            step = self._state.steps
            raise Shutdown(f"run {self._run_id} stopped for a shutdown after step {step}", step=step)

    def get_error(self, task: "asyncio.Task[Any]") -> BaseException | None:
        """Return the error that the attempt ends with, once its task is done; `None` if it succeeded.

        The stop goes before the error that the task raised while it was being stopped. But if the run finished before
        an interruption reached it, its result stands.
        """
        raised = None if task.cancelled() else task.exception()
        succeeded = raised is None and not task.cancelled()
        if self.is_stopped and not (succeeded and isinstance(self.error, RunInterrupted)):
            return self.error
        if self.cause is StopCause.CALL_INTERRUPTED and not succeeded:
            return raised if raised is not None and self.is_resumable_after(raised) else self.error
        if task.cancelled() and self.undo_error is not None:
            return self.undo_error
        if task.cancelled():
            return RunCancelled(f"run {self._run_id} was cancelled from within: its own code raised CancelledError")
        return raised

    # -- pauses -------------------------------------------------------------------------------------------------------

    async def pause(self, delay: timedelta) -> None:
        """Wait before a retry. A stop ends the pause at once.

        Raises:
            Shutdown: the host shuts down, and the run only pauses.
        """
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(delay, functools.partial(_resolve, over, False))
        self._pauses.append(over)
        self._end_pauses()
        try:
            ended_by_shutdown = await over
        finally:
            timer.cancel()
            self._pauses.remove(over)
        if ended_by_shutdown:
            self.raise_if_stopped()

    def drain(self) -> None:
        """Stop at the next step boundary, or at once if the run only pauses before a retry: the host shuts down."""
        self.draining = True
        self._end_pauses()

    def end_call(self) -> None:
        """A tool call has ended."""
        self.calls_in_progress -= 1
        if self.draining:
            self._end_pauses()

    def _end_pauses(self) -> None:
        """End the pauses if the host shuts down and the run only pauses.

        While other calls are in progress the pauses continue: stopping those calls could leave a `once` call in doubt.
        """
        if self.draining and self.calls_in_progress <= len(self._pauses):
            for over in self._pauses:
                _resolve(over, True)


def _resolve(over: "asyncio.Future[bool]", value: bool) -> None:
    if not over.done():
        over.set_result(value)


#: After the timeout of a shutdown, the time that tools in threads have to return before their runs are abandoned.
BLOCKED_TOOL_TIMEOUT = timedelta(seconds=10)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: Keeps shutdowns that signals started from being garbage collected before they finish.
_shutdown_tasks: set[asyncio.Task[Any]] = set()


class ShutdownSignals:
    """Starts a shutdown on SIGTERM or SIGINT. A second signal has the effect it had before."""

    def __init__(self, shutdown: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Handle the signals from now on, in the running event loop."""
        self._shutdown, self._loop = shutdown, asyncio.get_running_loop()
        #: The first signal.
        self.received: int | None = None
        # An ignored signal stays ignored: a shell starts background processes with SIGINT ignored.
        self._before = {
            number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN
        }
        for number in self._before:
            self._loop.add_signal_handler(number, self._start, number)

    def remove(self) -> None:
        """Handle no further signals. May be called again."""
        for number, handler in self._before.items():
            if self._loop.remove_signal_handler(number):
                signal.signal(number, handler)

    def _start(self, number: int) -> None:
        self.received = number
        self.remove()
        task = self._loop.create_task(self._shutdown())
        _shutdown_tasks.add(task)
        task.add_done_callback(_shutdown_tasks.discard)


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
        self, attempts: Mapping[str, "Attempt"], idle: asyncio.Event, threads: ToolThreads, clock: Clock
    ) -> None:
        """No attempt is added to `attempts` from now on; `idle` is set when it is empty."""
        self._attempts, self._idle, self._threads, self._clock = attempts, idle, threads, clock
        self._timer: Timer | None = None
        self._thread_timer: Timer | None = None
        #: Whether a run was abandoned whose tool has not returned.
        self.gave_up: bool = False

    async def finish(self, timeout: timedelta) -> None:
        """Return when all runs have stopped."""
        for attempt in self._attempts.values():
            attempt.drain()
        self._timer = self._clock.call_later(timeout, self._stop_all)
        try:
            await self._idle.wait()
        finally:
            self._timer.cancel()
            if self._thread_timer is not None:
                self._thread_timer.cancel()

    def _stop_all(self) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop_for_shutdown()
        self._schedule_check()
        self._thread_timer = self._clock.call_later(BLOCKED_TOOL_TIMEOUT, self._abandon_blocked)
        if blocked := self._list_blocked():
            log.warning(
                "the shutdown waits %d more seconds for tools in threads: %s",
                BLOCKED_TOOL_TIMEOUT.total_seconds(),
                _format_calls(blocked),
            )

    def _list_blocked(self) -> list[ToolContext]:
        return [call for call in self._threads.list_running() if call.run_id in self._attempts]

    def _abandon_blocked(self) -> None:
        blocked = self._list_blocked()
        if not blocked:
            return
        self.gave_up = True
        log.error(
            "the shutdown no longer waits for these tools, their runs are resumed when this process has ended: %s",
            _format_calls(blocked),
        )
        for run_id in dict.fromkeys(call.run_id for call in blocked):
            # Although the tool still works in its thread.
            self._attempts[run_id].abandon(with_task=True)

    def _schedule_check(self) -> None:
        waiting = {run_id for run_id, attempt in self._attempts.items() if attempt.saver.is_waiting_for_store}
        check = functools.partial(self._abandon_stalled, waiting, len(self._attempts))
        self._timer = self._clock.call_later(SHUTDOWN_STORE_TIMEOUT / 2, check)

    def _abandon_stalled(self, waiting: set[str], active_count: int) -> None:
        """Abandon the runs that waited for the store at the last check and still do, unless a run has ended since."""
        stalled = [
            run_id
            for run_id in sorted(waiting & self._attempts.keys())
            if self._attempts[run_id].saver.is_waiting_for_store
        ]
        if stalled and len(self._attempts) == active_count:
            log.error(
                "the store does not answer, and the shutdown does not wait for it: these runs stay as they were last "
                "saved, and recovery resumes them when this process has ended: %s",
                ", ".join(stalled),
            )
            for run_id in stalled:
                self._attempts[run_id].abandon()
        self._schedule_check()


def _format_calls(calls: Sequence[ToolContext]) -> str:
    return ", ".join(f"run {call.run_id}, tool {call.tool}, call {call.call_id}" for call in calls)
