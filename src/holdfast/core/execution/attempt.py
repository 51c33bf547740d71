"""One run that this process executes: its state, its writes to the store, and its stop."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import msgspec

from holdfast.clock import Clock
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool_threads import ToolThreads
from holdfast.core.errors import (
    RunCancelled,
    RunError,
    RunInterrupted,
    RunKilled,
    Shutdown,
    convert_process_exit,
)
from holdfast.core.execution.messages import Messages
from holdfast.core.execution.pauses import Pauses
from holdfast.core.execution.saving import IntentTimer, Saver
from holdfast.core.execution.stop_state import StopCause, StopState
from holdfast.core.loop import Loop
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import ObserverFactory, Observers
from holdfast.core.ports import Checkpointer, Ports, Resumption
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.run.mail import Mailbox
from holdfast.core.run.result import Result
from holdfast.core.run.run_events import RecordedEvent
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd, classify_error

log: logging.Logger = logging.getLogger("holdfast.run")

#: What happens to a run when the task that awaits it is cancelled: it continues, or it is cancelled too.
OnCancel = Literal["detach", "cancel"]


class RunSupervisor(Protocol):
    """Executes runs, each at most once at a time. The `Executor` is one; child runs are started through it."""

    def get_run(self, run_id: str) -> "RunExecution | None": ...

    async def stop_superseded(self, run_id: str, error: RunError) -> None:
        """Stop with `error` any execution of this run that holds an older claim."""
        ...

    async def supervise(self, agent: AgentSource, run: "RunExecution") -> Result:
        """Execute the run to its end and finalize its checkpoint."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the runs of one executor share."""

    supervisor: RunSupervisor
    ports: Ports
    clock: Clock
    intent_timer: IntentTimer
    #: Executes agents that name no loop.
    default_loop: Loop
    threads: ToolThreads
    metrics: RunMetrics
    #: They observe every attempt from its making on, also one whose checkpoint cannot be opened.
    observers: tuple[ObserverFactory, ...]
    require_durability: bool
    shutdown_exceptions: tuple[type[BaseException], ...]

    def get_loop(self, agent: AgentSource) -> Loop:
        return AgentDetails.from_source(agent).loop or self.default_loop


class RunExecution:
    """Joins a run's state with its checkpointer and the ports. Belongs to one task of one event loop."""

    def __init__(
        self,
        info: RunInfo,
        services: Services,
        *,
        resumption: Resumption | None = None,
        parent: "RunExecution | None" = None,
    ) -> None:
        self.info: RunInfo = info if resumption is None else resumption.info
        self.state: RunState = RunState() if resumption is None else resumption.state
        self.resumed: bool = resumption is not None
        self.taken_from: str | None = None if resumption is None else resumption.taken_from
        #: An attempt has begun, and its end is logged and counted.
        self.begun: bool = False
        #: Executes the agent; known before the agent is built.
        self.loop: Loop = services.default_loop
        self.services = services
        self.ports: Ports = services.ports
        self.clock: Clock = services.clock
        self.stop_state: StopState = StopState()
        self.pauses: Pauses = Pauses(self.clock, self.stop_state)
        self.mailbox: Mailbox = Mailbox(self.state.consumed, () if resumption is None else resumption.mail)
        self.messages: Messages = Messages(self.state, self.mailbox)
        #: It may have started child runs that are not terminal, in this process or an earlier one.
        self.may_have_children: bool = self.resumed
        self.observers: Observers = Observers(
            self.info, self.ports.listener, None if parent is None else parent.observers
        )
        self.saver: Saver = Saver(
            self.info.run_id,
            self.state,
            self.stop_state,
            checkpointer=None if resumption is None else resumption.checkpointer,
            clock=self.clock,
            observers=self.observers,
            require_durability=services.require_durability,
        )
        self.finalize_task: asyncio.Task[BaseException | None] | None = None
        #: The `Result` of the run or its error, for tasks that wait for it beside its caller.
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parent = parent
        self._task: asyncio.Task[Any] | None = None
        #: The task of the executor that waits for this run; `None` for a child, which the task of its tool waits for.
        self.supervisor: asyncio.Task[Any] | None = None
        self._steps_at_start = self.state.steps
        self._had_history = bool(self.state.history)
        self.observers.begin(services.observers, self)

    # -- stop ---------------------------------------------------------------------------------------------------

    def bind_task(self, task: asyncio.Task[Any]) -> None:
        """Set the task that a stop cancels."""
        self._task = self.saver.task = task
        if self.stop_state.is_stopped:
            task.cancel()

    def stop(self, error: BaseException) -> None:
        """Stop the run with `error`, wherever it is. Later calls have no effect."""
        if self.stop_state.record(StopCause.STOPPED, error) and self._task is not None and not self.saver.is_writing:
            self._task.cancel()  # a write in flight is finished first, so that the checkpointer knows its outcome

    def kill(self, reason: str) -> None:
        """End the run with `RunKilled`: for critics."""
        self.stop(RunKilled(f"run {self.info.run_id} was killed: {reason}"))

    def stop_for_shutdown(self) -> None:
        """Stop the run within its step and leave it resumable."""
        self.stop(Shutdown(f"run {self.info.run_id} was stopped for a shutdown within step {self.state.steps + 1}"))

    def on_supervisor_cancelled(self, cancel: asyncio.CancelledError) -> None:
        """Stop the run because the task that supervises it was cancelled.

        That happens to all tasks when an event loop ends, or at a second Ctrl-C: the run stays resumable. A child is
        supervised by the tool that started it: it is cancelled, unless its parent stays resumable.
        """
        if self.stop_state.draining:
            self.stop_for_shutdown()
            return
        if self._parent is None:
            self.stop(RunInterrupted(f"run {self.info.run_id} was interrupted within step {self.state.steps + 1}"))
            return
        above = self._parent.stop_state.error
        if above is None and self._parent._task is not None and self._parent._task.cancelling():
            # All tasks were cancelled, in any order: the supervisor of the parent has yet to see it.
            above = RunInterrupted(f"run {self._parent.info.run_id} was interrupted")
        if above is not None and self.is_resumable_after(above):
            self.stop(RunInterrupted(f"run {self.info.run_id} stopped with its parent: {above}"))
        elif self._is_root_cancelled:  # together with this one, and not stopped yet
            self.stop(RunInterrupted(f"run {self.info.run_id} was interrupted with its parent"))
        else:
            self.stop(cancel)

    @property
    def _is_root_cancelled(self) -> bool:
        root = self
        while root._parent is not None:
            root = root._parent
        return root.supervisor is not None and root.supervisor.cancelling() > 0

    def record_call_error(self, error: BaseException) -> None:
        """Record that a tool call stops the run with `error`, before its sibling calls are cancelled."""
        if not self.record_interruption(error):
            self.stop_state.record(StopCause.CALL_FAILED, error)

    def record_interruption(self, error: BaseException) -> bool:
        """Record the error of a tool call if it interrupts the run. Return whether it does."""
        resumable = self.is_resumable_after(error)
        if resumable:
            self.stop_state.record(StopCause.CALL_INTERRUPTED, error)
        return resumable

    @property
    def is_stopping(self) -> bool:
        return self.stop_state.cause is not StopCause.NONE

    def raise_if_stopped(self) -> None:
        """Stop here, between two steps, if the run was stopped or the host shuts down."""
        stop = self.stop_state
        if stop.error is not None and stop.is_stopped:
            raise stop.error
        if stop.draining:
            raise Shutdown(f"run {self.info.run_id} stopped for a shutdown after step {self.state.steps}")

    def get_error(self, task: asyncio.Task[Any]) -> BaseException | None:
        """Return the error that the run ends with, once its task is done; `None` if it succeeded.

        The stop state goes before the error that the task raised while it was being stopped. But if the run finished
        before an interruption reached it, its result stands.
        """
        raised = None if task.cancelled() else task.exception()
        succeeded = raised is None and not task.cancelled()
        stop = self.stop_state
        if stop.is_stopped and not (succeeded and isinstance(stop.error, RunInterrupted)):
            return stop.error
        if stop.cause is StopCause.CALL_INTERRUPTED and not succeeded:
            return raised if raised is not None and self.is_resumable_after(raised) else stop.error
        if task.cancelled():
            return RunCancelled(f"run {self.info.run_id} was cancelled from within: its own code raised CancelledError")
        return raised

    def classify_error(self, error: BaseException | None) -> AttemptEnd:
        """Return how the attempt ends if it ends with `error`."""
        return classify_error(error, self.services.shutdown_exceptions)

    def is_resumable_after(self, error: BaseException) -> bool:
        """Whether another attempt, here or elsewhere, continues the run when it stops with `error`."""
        return not self.classify_error(error).is_terminal

    def drain(self) -> None:
        """Stop the run at its next step boundary, or at once if it only pauses before a retry: the host shuts down."""
        self.stop_state.draining = True
        self.pauses.end_if_draining()

    async def pause(self, delay: timedelta) -> None:
        """Wait before a retry. A stop of the run ends the pause at once.

        Raises:
            Shutdown: the host shuts down, and the run only pauses.
        """
        if await self.pauses.wait(delay):
            self.raise_if_stopped()

    @property
    def is_waiting_for_store(self) -> bool:
        saver = self.saver
        return saver.is_writing or bool(saver.background_writes) or self.finalize_task is not None

    def abandon(self) -> None:
        """Cancel all writes and write nothing more, for the parents too. The claim ends with this process."""
        above: RunExecution | None = self
        while above is not None:
            above.stop_state.abandoned, above = True, above._parent
        for task in (
            *self.saver.background_writes,
            self.finalize_task,
            self._task if self.saver.is_writing else None,
        ):
            if task is not None:
                task.cancel()

    def abandon_thread(self) -> None:
        """End the run although a tool of it still works in its thread. Nothing more is written for it."""
        self.abandon()
        if self._task is not None:
            self._task.cancel()

    @property
    def is_child(self) -> bool:
        return self._parent is not None

    def nudge(self, text: str) -> None:
        """Put a message before the next step: for critics. Raises as `Messages.add_nudge` does."""
        self.messages.add_nudge(text)

    # -- the store ----------------------------------------------------------------------------------------------

    @property
    def unproven_since_resume(self) -> bool:
        """Whether the run was resumed and has not finished a step since: it may be what ended its last process."""
        return self.resumed and self.state.steps == self._steps_at_start

    @property
    def is_repeating_step(self) -> bool:
        """Whether an earlier process may have begun the current step, and made calls in it."""
        return self._had_history and self.state.steps == self._steps_at_start

    @property
    def checkpointer(self) -> Checkpointer | None:
        return self.saver.checkpointer

    async def save(self) -> None:
        """Make the port data durable now: for critics."""
        await self.saver.save(force=True)

    async def await_uninterruptible(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of work that cannot be cancelled, such as a thread.

        An interrupted run waits for it, because another worker may resume the run at once and must not repeat work
        that is still under way. A failed, cancelled or abandoned run does not wait.
        """
        task = asyncio.ensure_future(convert_process_exit(work))
        task.add_done_callback(_mark_retrieved)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                error = self.stop_state.error
                ended = task.done() or error is None or not self.is_resumable_after(error)
                if ended or self.stop_state.abandoned:
                    raise

    def record_event(self, event: RecordedEvent) -> None:
        """Add an event to the journal with the next save, for watchers: nothing else in the journal tells of it."""
        if self.checkpointer is not None:
            recorded = msgspec.structs.replace(event, at=self.clock.now())
            self.state.recorded_events.append((len(self.state.history), msgspec.json.encode(recorded)))


def _mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging an exception that no caller waits for any more."""
    if not task.cancelled():
        task.exception()
