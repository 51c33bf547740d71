"""One attempt: a run that this process executes, with its state, saver, stop, mailbox and observers."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.clock import Clock
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool_threads import ToolThreads
from holdfast.core.errors import DefinitionError, RunCancelled, RunInterrupted, RunKilled, Shutdown
from holdfast.core.execution.saving import IntentTimer, Saver
from holdfast.core.execution.stop import StopCause, StopState
from holdfast.core.json_value import to_json_value
from holdfast.core.log import format_short
from holdfast.core.loop import Loop
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import ObserverFactory, Observers, Retried
from holdfast.core.ports import Checkpointer, Ports, Resumption
from holdfast.core.redaction import Redact
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.run.mail import MailArrived, Mailbox
from holdfast.core.run.run_events import RecordedEvent, RetryScheduled
from holdfast.core.run.state import RunState

if TYPE_CHECKING:
    from holdfast.core.execution.executor import Executor

log: logging.Logger = logging.getLogger("holdfast.run")

#: What happens to a run when the task that awaits it is cancelled: it continues, or it is cancelled too.
OnCancel = Literal["detach", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the attempts of one executor share."""

    #: Child runs are started through it.
    executor: "Executor"
    ports: Ports
    clock: Clock
    intent_timer: IntentTimer
    #: Executes agents that name no loop.
    default_loop: Loop
    threads: ToolThreads
    metrics: RunMetrics
    #: They observe every attempt from its start, also one whose checkpoint cannot be opened.
    observers: tuple[ObserverFactory, ...]
    require_durability: bool
    shutdown_exceptions: tuple[type[BaseException], ...]
    #: Removes secrets from what the store keeps.
    redact: Redact | None

    def redact_value(self, value: Any) -> Any:
        """Return plain data as the store keeps it."""
        return value if self.redact is None else self.redact(value)

    def find_agent(self, agent: AgentSource | str) -> AgentSource:
        """Return the agent that is meant.

        Raises:
            DefinitionError: it is the name of an agent that the App does not know.
        """
        if not isinstance(agent, str):
            return agent
        if agent not in self.ports.agents:
            known = ", ".join(sorted(self.ports.agents)) or "none"
            raise DefinitionError(f"no agent {agent!r}; known: {known}")
        return self.ports.agents[agent]

    def get_loop(self, agent: AgentSource) -> Loop:
        return AgentDetails.from_source(agent).loop or self.default_loop


class Attempt:
    """Joins a run's state with its checkpointer and the ports. Belongs to one task of one event loop."""

    def __init__(
        self,
        info: RunInfo,
        services: Services,
        *,
        resumption: Resumption | None = None,
        parent: "Attempt | None" = None,
    ) -> None:
        """Make an attempt.

        Args:
            parent: the attempt whose tool call has started this one.
        """
        self.info: RunInfo = info if resumption is None else resumption.info
        self.state: RunState = RunState() if resumption is None else resumption.state
        self.resumed: bool = resumption is not None
        self.taken_from: str | None = None if resumption is None else resumption.taken_from
        self.services = services
        #: Executes the agent; known before the agent is built.
        self.loop: Loop = services.default_loop
        self.parent = parent
        self.stop_state: StopState = StopState(
            self.info.run_id, self.state, services.clock, services.shutdown_exceptions
        )
        if resumption is not None and resumption.is_cancelled:
            self.stop_state.begin_undo(RunCancelled(f"run {self.info.run_id} was cancelled"))
        self.mailbox: Mailbox = Mailbox(self.state.consumed, () if resumption is None else resumption.mail)
        self.observers: Observers = Observers(
            self.info, services.ports.listener, None if parent is None else parent.observers
        )
        self.saver: Saver = Saver(
            self.info.run_id,
            self.state,
            self.stop_state,
            checkpointer=None if resumption is None else resumption.checkpointer,
            clock=services.clock,
            observers=self.observers,
            require_durability=services.require_durability,
        )
        #: The `Result` of the run or its error, for tasks that wait for it beside its caller.
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        #: The task of the executor that waits for this run; `None` for a child, which the task of its tool waits for.
        self.supervisor: asyncio.Task[Any] | None = None
        self._steps_at_start = self.state.steps
        #: All tasks were cancelled before the shutdown began, as at the end of an event loop.
        self._ends_with_loop = False
        self.observers.begin(services.observers, self)

    @property
    def checkpointer(self) -> Checkpointer | None:
        return self.saver.checkpointer

    @property
    def is_child(self) -> bool:
        return self.parent is not None

    @property
    def has_no_step_yet(self) -> bool:
        """Whether the run was resumed and has not finished a step since: it may be what ended its last process."""
        return self.resumed and self.state.steps == self._steps_at_start

    @property
    def is_root_cancelled(self) -> bool:
        """Whether the supervisor of the run at the top was cancelled: all tasks were, or it alone."""
        root = self
        while root.parent is not None:
            root = root.parent
        return root.supervisor is not None and root.supervisor.cancelling() > 0

    @property
    def is_hurried(self) -> bool:
        """Whether all tasks were cancelled while the host was shutting down already: the process shall end now."""
        return self.stop_state.draining and self.is_root_cancelled and not self._ends_with_loop

    # -- stop ---------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Stop at the next step boundary: the host shuts down, also because its event loop ends."""
        if not self.stop_state.draining:
            self._ends_with_loop = self.is_root_cancelled
        self.stop_state.drain()

    def bind_task(self, task: asyncio.Task[Any]) -> None:
        """Set the task that a stop cancels."""
        self.saver.task = task
        if self.stop_state.is_stopped:
            task.cancel()

    def stop(self, error: BaseException) -> None:
        """Stop the run with `error`, wherever it is. Later calls have no effect."""
        saver = self.saver
        if self.stop_state.record(StopCause.STOPPED, error) and saver.task is not None and not saver.is_writing:
            saver.task.cancel()  # a write in flight is finished first, so that the checkpointer knows its outcome

    def kill(self, reason: str) -> None:
        """End the run with `RunKilled`: for critics."""
        self.stop(RunKilled(f"run {self.info.run_id} was killed: {reason}"))

    def stop_for_shutdown(self) -> None:
        """Stop the run within its step and leave it resumable."""
        step = self.state.steps
        self.stop(Shutdown(f"run {self.info.run_id} was stopped for a shutdown within step {step + 1}", step=step))

    def on_supervisor_cancelled(self, cancel: asyncio.CancelledError) -> None:
        """Stop the run because the task that supervises it was cancelled.

        That happens to all tasks when an event loop ends, or at a second Ctrl-C: the run stays resumable. A child is
        supervised by the tool that started it: it is cancelled, unless its parent stays resumable.
        """
        run_id, parent = self.info.run_id, self.parent
        if self.stop_state.draining:
            self.stop_for_shutdown()
            return
        if parent is None:
            self.stop(RunInterrupted(f"run {run_id} was interrupted within step {self.state.steps + 1}"))
            return
        above = parent.stop_state.error
        if above is None and parent.saver.task is not None and parent.saver.task.cancelling():
            # All tasks were cancelled, in any order: the supervisor of the parent has yet to see it.
            above = RunInterrupted(f"run {parent.info.run_id} was interrupted")
        if above is not None and self.stop_state.is_resumable_after(above):
            self.stop(RunInterrupted(f"run {run_id} stopped with its parent: {above}"))
        elif self.is_root_cancelled:  # together with this one, and not stopped yet
            self.stop(RunInterrupted(f"run {run_id} was interrupted with its parent"))
        else:
            self.stop(cancel)

    def get_error(self, task: asyncio.Task[Any]) -> BaseException | None:
        """Return the error that the attempt ends with, once its task is done; `None` if it succeeded.

        A cancel may come before or after the code whose steps it undoes. The next attempt undoes them: the request is
        in the store.
        """
        stop, error = self.stop_state, self.stop_state.get_error(task)
        leaves_undo = self.state.undo_on_cancel and not stop.is_end_seen and self.checkpointer is not None
        if leaves_undo and isinstance(error, RunCancelled) and error is stop.error:
            return MailArrived(f"run {self.info.run_id} continues: its cancel undoes steps")
        return error

    async def receive_stop(self) -> None:
        """Let a stop arrive after its cancel of a call: code that cancels all tasks may stop the run only now.

        A child does not wait until the stop has come down to it, from one run to the next.
        """
        with suppress(asyncio.CancelledError):  # of the stop
            await asyncio.sleep(0)
        if not self.stop_state.is_stopping and self.is_root_cancelled:
            self.on_supervisor_cancelled(asyncio.CancelledError())

    def abandon(self, *, with_task: bool = False) -> None:
        """Cancel all writes and write nothing more, for the parents too. The claim ends with this process.

        Args:
            with_task: end the attempt although a tool of it still works in its thread.
        """
        above: Attempt | None = self
        while above is not None:
            above.stop_state.abandoned, above = True, above.parent
        self.saver.cancel_writes()
        if with_task and self.saver.task is not None:
            self.saver.task.cancel()

    # -- for observers, critics and loops -----------------------------------------------------------------------

    def nudge(self, text: str) -> None:
        """Add a message before the next step: for critics. It is saved with the run and survives a resume.

        Raises:
            PayloadError: no store could keep the text, such as half a surrogate pair. Nothing was changed.
        """
        self.state.nudges = (*self.state.nudges, to_json_value(text, "the message"))

    async def save(self) -> None:
        """Make the port data durable now: for critics."""
        await self.saver.save(force=True)

    def record_event(self, event: RecordedEvent) -> None:
        """Add an event to the journal with the next save, for watchers: nothing else in the journal records it."""
        if self.checkpointer is not None:
            recorded = msgspec.structs.replace(event, at=self.services.clock.now())
            self.state.recorded_events.append((len(self.state.history), msgspec.json.encode(recorded)))


async def report_retry(
    attempt: Attempt, failed_tries: int, delay: timedelta, error: Exception, tool: str = "", call_id: str = ""
) -> None:
    """Make a retry visible: to observers, to the listener and in the store."""
    state = attempt.state
    state.retry = msgspec.structs.replace(
        state.retry,
        count=state.retry.count + 1,
        error=format_short(error),
        next_at=attempt.services.clock.now() + delay,
    )
    attempt.observers.emit(Retried(tool=tool, call_id=call_id, failed_tries=failed_tries, delay=delay, error=error))
    event = RetryScheduled(
        run_id=attempt.info.run_id,
        step=state.steps + 1,
        call_id=call_id,
        tool=tool,
        error=format_short(error),
        attempt=failed_tries,
        delay=delay,
    )
    attempt.record_event(event)
    await attempt.observers.publish(event)
    await attempt.saver.save()
