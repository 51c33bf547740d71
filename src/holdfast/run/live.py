"""One run that is being driven right now."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock
from holdfast.run.errors import NotSaved, RunError, RunInterrupted, RunKilled, Shutdown
from holdfast.run.info import RunInfo
from holdfast.run.intents import Intents
from holdfast.run.outcome import Settlement, settlement
from holdfast.run.payload import plain
from holdfast.run.ports import Checkpointer, Ports, Recorder, RunEvent, Watch
from holdfast.run.state import RunState
from holdfast.run.uninterrupted import uninterrupted

log = logging.getLogger("holdfast.run")

#: So many of them are made faster than a duration is from seconds.
_MICROSECOND = timedelta(microseconds=1)

#: Among the notes of a run: what was said to it and no step has taken yet.
STEERING = "steering"


class LiveRun:
    """Joins a run's state with its checkpointer and its ports. Belongs to one task of one event loop."""

    def __init__(
        self,
        info: RunInfo,
        state: RunState,
        *,
        ports: Ports,
        clock: Clock,
        intents: Intents,
        required: bool = False,
        shutdown_types: tuple[type[BaseException], ...] = (),
        checkpointer: Checkpointer | None = None,
        resumed: bool = False,
        left_with_caller: bool = False,
        parent: "LiveRun | None" = None,
    ) -> None:
        self.info, self.state, self.ports, self.clock, self.intents = info, state, ports, clock, intents
        self.checkpointer = checkpointer
        self.resumed = resumed
        #: It may have started runs that are not over, in this life or in an earlier one.
        self.may_have_children = resumed
        self.recorder: Recorder | None = None
        self.watch: Watch | None = None
        #: Whether anybody would hear of an event: if not, it need not be made.
        self.is_watched: bool = ports.delivery is not None or (parent is not None and parent.is_watched)
        self.draining = False
        #: What ends the run while its other tool calls are still being ended for it.
        self.failing: BaseException | None = None
        self._parent = parent
        #: Whoever waits for the run is not who asked for it: a cancel leaves it for recovery.
        self._left_with_caller = left_with_caller
        self._required, self._shutdown_types = required, shutdown_types
        self._task: asyncio.Task[Any] | None = None
        self._writing = False
        #: Writes that were begun by other tasks than the run's own.
        self._writes: set[asyncio.Task[None]] = set()
        #: What settles the run, once it has ended.
        self.settling: asyncio.Task[None] | None = None
        #: Nobody waits for the store any more: what it has of the run is what recovery finds.
        self.given_up = False
        #: How the run ended, for whoever else waits for it: a `Result`, or its error.
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._stopped_by: BaseException | None = None
        #: When the run would have begun if it had never been interrupted.
        self._since = clock.monotonic() - state.elapsed.total_seconds()
        self._iteration_before = state.iteration

    # -- from outside -------------------------------------------------------------------------------------------

    def steer(self, text: str) -> None:
        """Put a message in front of the next step. It is saved with the run: in this life or in the next.

        Raises:
            PayloadError: no store could keep the text, such as half a surrogate pair. Nothing was changed.
        """
        # A new list each time: what was saved is compared with it.
        self.state.notes[STEERING] = [*self.steering, plain(text, "the message")]

    def kill(self, reason: str) -> None:
        """End the run: for critics."""
        self.stop(RunKilled(f"run {self.info.run_id} was killed: {reason}"))

    async def save_notes(self) -> None:
        """Make what is in the notes durable now: for critics."""
        await self.save(urgent=True)

    def stop(self, error: BaseException) -> None:
        """End the run with `error`, wherever it is. The first to say so decides how the run ended."""
        if self._stopped_by is None:
            self._stopped_by = error
            # A write under way is seen through first, so that what is known of the store stays true.
            if self._task is not None and not self._writing:
                self._task.cancel()

    def runs_in(self, task: asyncio.Task[Any]) -> None:
        """Tell which task is to be cancelled when the run is stopped."""
        self._task = task
        if self._stopped_by is not None:
            task.cancel()

    def stop_with_caller(self, cancel: asyncio.CancelledError) -> None:
        """Whoever waits for the run was cancelled. That ends it; but a child goes down as its parent does.

        It does not end the run if the caller had only found it and gone on with it. Nor does it while the host shuts
        down: a second Ctrl-C cancels all that waits, and nobody wants the run to end.
        """
        if self.draining:
            self.stop(
                Shutdown(f"run {self.info.run_id} was stopped for a shutdown within step {self.state.iteration + 1}")
            )
            return
        if self._left_with_caller:
            self.stop(RunInterrupted(f"run {self.info.run_id} was left within step {self.state.iteration + 1}"))
            return
        above = None if self._parent is None else self._parent.ended_by
        if above is not None and self.is_left_by(above):
            self.stop(RunInterrupted(f"run {self.info.run_id} stopped with its parent: {above}"))
        else:
            self.stop(cancel)

    @property
    def waits_for_store(self) -> bool:
        """Whether the run would go on, or be over, if the store answered."""
        return self._writing or bool(self._writes) or self.settling is not None

    def give_up(self) -> None:
        """Stop waiting for the store, and write nothing more: for a shutdown. The claim ends with this process."""
        above: LiveRun | None = self
        while above is not None:
            above.given_up, above = True, above._parent
        waiting = [*self._writes, self.settling, self._task if self._writing else None]
        for task in waiting:
            if task is not None:
                task.cancel()

    @property
    def stopped_by(self) -> BaseException | None:
        return self._stopped_by

    @property
    def ended_by(self) -> BaseException | None:
        """What the run is being ended for, from outside or by a tool call of its own."""
        return self._stopped_by or self.failing

    @property
    def left_for(self) -> BaseException | None:
        """What a tool call of its own leaves the run for. What the others raise from then on is not their outcome."""
        return self.failing if self.failing is not None and self.is_left_by(self.failing) else None

    def settlement(self, error: BaseException | None) -> Settlement:
        """What becomes of the run's checkpoint if it ends with `error`."""
        return settlement(error, self._shutdown_types)

    def is_left_by(self, error: BaseException) -> bool:
        """Whether the run is not over when it stops with `error`: somebody goes on with it."""
        return self.settlement(error) not in (Settlement.COMPLETE, Settlement.FAIL)

    # -- from inside --------------------------------------------------------------------------------------------

    def boundary(self) -> None:
        """Between two steps: stop here if the run was stopped, or the host shuts down."""
        if self._stopped_by is not None:
            raise self._stopped_by
        if self.draining:
            raise Shutdown(f"run {self.info.run_id} stopped for a shutdown after step {self.state.iteration}")

    def take_steering(self) -> list[str]:
        """What was steered in since the last step. Goes into the history before anything is saved."""
        return list(self.state.notes.pop(STEERING, ()))

    @property
    def steering(self) -> Sequence[str]:
        """What was steered in and no step has taken yet."""
        steered: Sequence[str] = self.state.notes.get(STEERING, ())
        return steered

    @property
    def has_steering(self) -> bool:
        return STEERING in self.state.notes

    def count_time(self) -> timedelta:
        """Bring the state's elapsed time up to now."""
        self.state.elapsed = elapsed = _MICROSECOND * round((self.clock.monotonic() - self._since) * 1e6)
        return elapsed

    @property
    def on_trial(self) -> bool:
        """Whether the run was resumed and has not finished a step since: it may be what ended its process before."""
        return self.resumed and self.state.iteration == self._iteration_before

    async def save(self, *, urgent: bool = False, essential: bool = False) -> bool:
        """Save the state. Trouble with the store is logged and the next save carries what this one could not.

        Returns whether there was no trouble: an urgent save is in the store then.

        Args:
            urgent: not throttled.
            essential: the run must not go on without it; then trouble interrupts the run, and recovery goes on with it.
        """
        if self.checkpointer is None:
            return True
        self.count_time()
        try:
            write = self.checkpointer.save(self.state, urgent=urgent or essential)
            if asyncio.current_task() is not self._task:
                await self._see_through(write)
                return True
            # As `_see_through` does: one layer less, for what happens at every step.
            self._writing = True
            try:
                await write
            finally:
                self._writing = False
            if self._stopped_by is not None:
                raise asyncio.CancelledError
        except RunError:
            raise
        except Exception as exc:  # whatever a store raises: it must never become the run's result
            if essential or self._required:
                raise NotSaved(f"run {self.info.run_id} could not be saved and waits for recovery: {exc}") from exc
            log.warning("run %s: a save failed, the next one will carry it: %s", self.info.run_id, exc)
            if self._stopped_by is not None and asyncio.current_task() is self._task:
                raise asyncio.CancelledError from exc
            return False
        return True

    async def confirm(self) -> None:
        """Raise unless this process still owns the run."""
        if self.checkpointer is None:
            return
        try:
            await self._see_through(self.checkpointer.confirm())
        except RunError:
            raise
        except Exception as exc:  # as for `save`
            raise NotSaved(f"run {self.info.run_id} could not prove that it is still ours: {exc}") from exc

    async def _see_through(self, write: Coroutine[Any, Any, None]) -> None:
        """Finish a write that was begun even if the run is stopped meanwhile; the stop comes into force then."""
        if asyncio.current_task() is not self._task:
            task = asyncio.ensure_future(write)
            self._writes.add(task)
            try:
                await uninterrupted(task)
            finally:
                self._writes.discard(task)
            return
        self._writing = True
        try:
            await write
        finally:
            self._writing = False
        if self._stopped_by is not None:
            raise asyncio.CancelledError

    async def outlast(self, work: Coroutine[Any, Any, Any]) -> Any:
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
                ended_by = self.ended_by
                if task.done() or ended_by is None or not self.is_left_by(ended_by):
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
        if self.ports.delivery is not None:
            await self.ports.delivery.progress(self.info, event)
