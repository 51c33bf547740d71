"""One run that is being driven right now.

What is done when a run has ended, one way or the other. Raises nothing: that would mask how the run ended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Literal

from holdfast.clock import Clock
from holdfast.concurrency import shielded
from holdfast.core.errors import RunError, RunInterrupted, RunKilled, RunParked, SaveFailed, Shutdown
from holdfast.core.execution.intent_timer import IntentTimer
from holdfast.core.info import RunInfo
from holdfast.core.json_value import to_json_value
from holdfast.core.ports import Checkpointer, Ports, Recorder, RunEvent, Watch
from holdfast.core.result import CheckpointAction, Result, classify_error
from holdfast.core.state import RunState

log = logging.getLogger("holdfast.run")

#: What becomes of a run when the task that awaits it is cancelled.
OnCancel = Literal["cancel", "interrupt"]

#: So many of them are made faster than a duration is from seconds.
_MICROSECOND = timedelta(microseconds=1)

#: Among the notes of a run: what was said to it and no step has taken yet.
STEERING_KEY = "steering"


class RunExecution:
    """Joins a run's state with its checkpointer and its ports. Belongs to one task of one event loop."""

    def __init__(
        self,
        info: RunInfo,
        state: RunState,
        *,
        ports: Ports,
        clock: Clock,
        intent_timer: IntentTimer,
        require_durability: bool = False,
        shutdown_exceptions: tuple[type[BaseException], ...] = (),
        checkpointer: Checkpointer | None = None,
        resumed: bool = False,
        on_cancel: OnCancel = "cancel",
        parent: "RunExecution | None" = None,
    ) -> None:
        self.info, self.state, self.ports, self.clock, self.intent_timer = info, state, ports, clock, intent_timer
        self.checkpointer = checkpointer
        self.resumed = resumed
        #: It may have started runs that are not over, in this life or in an earlier one.
        self.may_have_children = resumed
        self.recorder: Recorder | None = None
        self.watch: Watch | None = None
        #: Whether anybody would hear of an event: if not, it need not be made.
        self.has_listeners: bool = ports.listener is not None or (parent is not None and parent.has_listeners)
        self.draining = False
        #: What ends the run while its other tool calls are still being ended for it.
        self.call_error: BaseException | None = None
        self._parent = parent
        #: Whoever waits for the run is not who asked for it: a cancel leaves it for recovery.
        self._on_cancel = on_cancel
        self._require_durability, self._shutdown_exceptions = require_durability, shutdown_exceptions
        self._task: asyncio.Task[Any] | None = None
        self._writing = False
        #: Writes that were begun by other tasks than the run's own.
        self._background_writes: set[asyncio.Task[None]] = set()
        #: What settles the run, once it has ended.
        self.finalize_task: asyncio.Task[None] | None = None
        #: Nobody waits for the store any more: what it has of the run is what recovery finds.
        self.abandoned = False
        #: How the run ended, for whoever else waits for it: a `Result`, or its error.
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stop_error: BaseException | None = None
        #: When the run would have begun if it had never been interrupted.
        self._started_at = clock.monotonic() - state.elapsed.total_seconds()
        self._steps_at_start = state.steps

    # -- from outside -------------------------------------------------------------------------------------------

    def steer(self, text: str) -> None:
        """Put a message in front of the next step. It is saved with the run: in this life or in the next.

        Raises:
            PayloadError: no store could keep the text, such as half a surrogate pair. Nothing was changed.
        """
        # A new list each time: what was saved is compared with it.
        self.state.annotations[STEERING_KEY] = [*self.steering, to_json_value(text, "the message")]

    def kill(self, reason: str) -> None:
        """End the run: for critics."""
        self.stop(RunKilled(f"run {self.info.run_id} was killed: {reason}"))

    async def save_annotations(self) -> None:
        """Make what is in the notes durable now: for critics."""
        await self.save(force=True)

    def stop(self, error: BaseException) -> None:
        """End the run with `error`, wherever it is. The first to say so decides how the run ended."""
        if self._stop_error is None:
            self._stop_error = error
            # A write under way is seen through first, so that what is known of the store stays true.
            if self._task is not None and not self._writing:
                self._task.cancel()

    def bind_task(self, task: asyncio.Task[Any]) -> None:
        """Tell which task is to be cancelled when the run is stopped."""
        self._task = task
        if self._stop_error is not None:
            task.cancel()

    def on_caller_cancelled(self, cancel: asyncio.CancelledError) -> None:
        """Whoever waits for the run was cancelled. That ends it; but a child goes down as its parent does.

        It does not end the run if the caller had only found it and gone on with it. Nor does it while the host shuts
        down: a second Ctrl-C cancels all that waits, and nobody wants the run to end.
        """
        if self.draining:
            self.stop(Shutdown(f"run {self.info.run_id} was stopped for a shutdown within step {self.state.steps + 1}"))
            return
        if self._on_cancel == "interrupt":
            self.stop(RunInterrupted(f"run {self.info.run_id} was left within step {self.state.steps + 1}"))
            return
        above = None if self._parent is None else self._parent.stop_reason
        if above is not None and self.is_resumable_after(above):
            self.stop(RunInterrupted(f"run {self.info.run_id} stopped with its parent: {above}"))
        else:
            self.stop(cancel)

    @property
    def is_waiting_for_store(self) -> bool:
        """Whether the run would go on, or be over, if the store answered."""
        return self._writing or bool(self._background_writes) or self.finalize_task is not None

    def abandon(self) -> None:
        """Stop waiting for the store, and write nothing more: for a shutdown. The claim ends with this process."""
        above: RunExecution | None = self
        while above is not None:
            above.abandoned, above = True, above._parent
        waiting = [*self._background_writes, self.finalize_task, self._task if self._writing else None]
        for task in waiting:
            if task is not None:
                task.cancel()

    @property
    def stop_error(self) -> BaseException | None:
        return self._stop_error

    @property
    def stop_reason(self) -> BaseException | None:
        """What the run is being ended for, from outside or by a tool call of its own."""
        return self._stop_error or self.call_error

    @property
    def interrupting_error(self) -> BaseException | None:
        """What a tool call of its own leaves the run for. What the others raise from then on is not their outcome."""
        return self.call_error if self.call_error is not None and self.is_resumable_after(self.call_error) else None

    def classify_error(self, error: BaseException | None) -> CheckpointAction:
        """What becomes of the run's checkpoint if it ends with `error`."""
        return classify_error(error, self._shutdown_exceptions)

    def is_resumable_after(self, error: BaseException) -> bool:
        """Whether the run is not over when it stops with `error`: somebody goes on with it."""
        return self.classify_error(error) not in (CheckpointAction.COMPLETE, CheckpointAction.FAIL)

    # -- from inside --------------------------------------------------------------------------------------------

    def raise_if_stopped(self) -> None:
        """Between two steps: stop here if the run was stopped, or the host shuts down."""
        if self._stop_error is not None:
            raise self._stop_error
        if self.draining:
            raise Shutdown(f"run {self.info.run_id} stopped for a shutdown after step {self.state.steps}")

    def take_steering(self) -> list[str]:
        """What was steered in since the last step. Goes into the history before anything is saved."""
        return list(self.state.annotations.pop(STEERING_KEY, ()))

    @property
    def steering(self) -> Sequence[str]:
        """What was steered in and no step has taken yet."""
        steered: Sequence[str] = self.state.annotations.get(STEERING_KEY, ())
        return steered

    @property
    def has_steering(self) -> bool:
        return STEERING_KEY in self.state.annotations

    def update_elapsed(self) -> timedelta:
        """Bring the state's elapsed time up to now."""
        self.state.elapsed = elapsed = _MICROSECOND * round((self.clock.monotonic() - self._started_at) * 1e6)
        return elapsed

    @property
    def unproven_since_resume(self) -> bool:
        """Whether the run was resumed and has not finished a step since: it may be what ended its process before."""
        return self.resumed and self.state.steps == self._steps_at_start

    async def save(self, *, force: bool = False, must_succeed: bool = False) -> bool:
        """Save the state. Trouble with the store is logged and the next save carries what this one could not.

        Returns whether there was no trouble: an urgent save is in the store then.

        Args:
            urgent: not throttled.
            essential: the run must not go on without it; then trouble interrupts the run, and recovery goes on with it.
        """
        if self.checkpointer is None:
            return True
        self.update_elapsed()
        try:
            write = self.checkpointer.save(self.state, force=force or must_succeed)
            if asyncio.current_task() is not self._task:
                await self._shield_write(write)
                return True
            # As `_see_through` does: one layer less, for what happens at every step.
            self._writing = True
            try:
                await write
            finally:
                self._writing = False
            if self._stop_error is not None:
                raise asyncio.CancelledError
        except RunError:
            raise
        except Exception as exc:  # whatever a store raises: it must never become the run's result
            if must_succeed or self._require_durability:
                raise SaveFailed(f"run {self.info.run_id} could not be saved and waits for recovery: {exc}") from exc
            log.warning("run %s: a save failed, the next one will carry it: %s", self.info.run_id, exc)
            if self._stop_error is not None and asyncio.current_task() is self._task:
                raise asyncio.CancelledError from exc
            return False
        return True

    async def verify_claim(self) -> None:
        """Raise unless this process still owns the run."""
        if self.checkpointer is None:
            return
        try:
            await self._shield_write(self.checkpointer.verify_claim())
        except RunError:
            raise
        except Exception as exc:  # as for `save`
            raise SaveFailed(f"run {self.info.run_id} could not prove that it is still ours: {exc}") from exc

    async def _shield_write(self, write: Coroutine[Any, Any, None]) -> None:
        """Finish a write that was begun even if the run is stopped meanwhile; the stop comes into force then."""
        if asyncio.current_task() is not self._task:
            task = asyncio.ensure_future(write)
            self._background_writes.add(task)
            try:
                await shielded(task)
            finally:
                self._background_writes.discard(task)
            return
        self._writing = True
        try:
            await write
        finally:
            self._writing = False
        if self._stop_error is not None:
            raise asyncio.CancelledError

    async def await_uninterruptible(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What work that cannot be stopped half-way gives.

        A run that is to be left waits for it: somebody else goes on with the run at once, and must not do what is
        still being done. One that is ended does not wait.
        """
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                ended_by = self.stop_reason
                if task.done() or ended_by is None or not self.is_resumable_after(ended_by):
                    raise

    async def emit(self, event: RunEvent) -> None:
        """Tell the critic and the delivery that something happened: a sign of life of the run and of its parents."""
        if self.watch is not None:
            self.watch.activity()
        above = self._parent
        while above is not None:
            if above.watch is not None:
                above.watch.activity()
            above = above._parent
        if self.ports.listener is not None:
            await self.ports.listener.on_event(self.info, event)


#: A run that has ended, what becomes of its checkpoint, and the error it ended with.
_PortCallback = Callable[[RunExecution, CheckpointAction, BaseException | None], Awaitable[None]]


async def finalize(run: RunExecution, error: BaseException | None, result: tuple[Result, Any] | None) -> None:
    """Do to the checkpoint what the way out demands, and close the ports.

    Args:
        result: what the run gives, and its output as it is stored, if it succeeded.
    """
    way = run.classify_error(error)
    try:
        # What the last step used is counted before the run is gone from the store: after it, nobody would know.
        await _call_ports(run, way, error, _commit_budget)
        if run.checkpointer is not None and not run.abandoned:
            await _finalize_checkpoint(run, way, error, result)
    except asyncio.CancelledError:
        if not run.abandoned:
            raise
    except Exception as exc:  # whatever a store raises
        log.error("run %s: its checkpoint could not be settled (%s)", run.info.run_id, way, exc_info=exc)
    await _call_ports(run, way, error, _close_watch, _close_audit, _report_error)


async def release_claim(run: RunExecution) -> None:
    """Leave a run that was claimed and cannot be driven here for others."""
    if run.checkpointer is not None:
        try:
            await run.checkpointer.release()
        except Exception as exc:  # whatever a store raises
            log.error("run %s: its claim could not be given back", run.info.run_id, exc_info=exc)


async def _finalize_checkpoint(
    run: RunExecution, action: CheckpointAction, error: BaseException | None, result: tuple[Result, Any] | None
) -> None:
    checkpointer = run.checkpointer
    assert checkpointer is not None
    if action is CheckpointAction.COMPLETE:
        assert result is not None
        await checkpointer.complete(result[1], result[0].usage)
    elif action is CheckpointAction.FAIL:
        assert error is not None
        await checkpointer.fail(error, may_have_children=run.may_have_children)
    elif action is not CheckpointAction.NONE:
        await _save_unsaved(run)
        if isinstance(error, RunParked):
            await checkpointer.park(error.message)
        else:
            # The host's own shutdown exception says nothing worth keeping.
            left = error if isinstance(error, RunInterrupted) and not isinstance(error, Shutdown) else None
            await checkpointer.release(str(left or ""), left.retry_after if left else timedelta(0))


async def _save_unsaved(run: RunExecution) -> None:
    """What the run did since its last save, so that recovery begins there. What was saved before is safe anyway."""
    try:
        await run.save(force=True)
    except Exception as exc:  # such as a transcript over its cap: then the run stays as it was saved
        log.warning("run %s: its last moments were not saved: %s", run.info.run_id, exc)


async def _call_ports(
    run: RunExecution, action: CheckpointAction, error: BaseException | None, *callbacks: _PortCallback
) -> None:
    for closing in callbacks:
        try:
            await closing(run, action, error)
        except Exception as exc:  # a host's own port may raise anything
            log.error("run %s: a port failed while the run was settled", run.info.run_id, exc_info=exc)


async def _commit_budget(run: RunExecution, action: CheckpointAction, error: BaseException | None) -> None:
    if run.ports.budget is not None and action is not CheckpointAction.NONE:
        run.update_elapsed()
        await run.ports.budget.commit(run.info, run.state)


async def _close_watch(run: RunExecution, action: CheckpointAction, error: BaseException | None) -> None:
    if run.watch is not None:
        run.watch.close()


async def _close_audit(run: RunExecution, action: CheckpointAction, error: BaseException | None) -> None:
    if run.recorder is not None:
        run.recorder.close(action.value, run.state.own_usage, error)


async def _report_error(run: RunExecution, action: CheckpointAction, error: BaseException | None) -> None:
    if error is not None and run.ports.listener is not None:
        await run.ports.listener.on_error(run.info, error)
