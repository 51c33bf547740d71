"""Saver: writes one attempt to its checkpointer. IntentTimer: the delayed saves of all attempts of an executor."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock, Timer
from holdfast.concurrency import run_in_background, shielded
from holdfast.core.errors import DefinitionError, NotDurable, RunError, RunLost, SaveFailed
from holdfast.core.execution.stop import StopState
from holdfast.core.observer import ClaimVerified, Observers, Saved
from holdfast.core.ports import Checkpointer
from holdfast.core.run.mail import MailArrived
from holdfast.core.run.state import RunState

if TYPE_CHECKING:
    from holdfast.core.execution.calling.tool_calls import ToolCalls

log: logging.Logger = logging.getLogger("holdfast.run")

#: A reply that asks for pure or idempotent tools is saved if they take longer than this. Faster ones share one write
#: with it.
INTENT_DELAY = timedelta(milliseconds=2)

#: Adding and subtracting clock readings loses less than this many seconds.
_ROUNDING_ERROR_S = 1e-6


class Saver:
    """Writes one attempt to its checkpointer, and knows which writes are in flight. Belongs to the attempt's task."""

    def __init__(
        self,
        run_id: str,
        state: RunState,
        stop_state: StopState,
        *,
        checkpointer: Checkpointer | None,
        clock: Clock,
        observers: Observers,
        require_durability: bool,
    ) -> None:
        """Make the saver of an attempt.

        Args:
            checkpointer: of a resumed run. A new one gets its own when it is opened.
        """
        self._run_id, self._state, self._stop_state = run_id, state, stop_state
        self._clock, self._observers = clock, observers
        self._require_durability = require_durability
        #: `None`: the run is not durable.
        self.checkpointer: Checkpointer | None = checkpointer
        #: The attempt's own task. Its writes are not interrupted by a stop.
        self.task: asyncio.Task[Any] | None = None
        #: That task waits for the store.
        self.is_writing = False
        #: Writes that other tasks have started.
        self.background_writes: set[asyncio.Task[None]] = set()
        #: Ends the checkpoint, once the attempt's task is done.
        self.finalize_task: asyncio.Task[BaseException | None] | None = None
        #: The run is in the store.
        self.is_stored = checkpointer is not None
        #: When the run would have started if it had never been interrupted.
        self._started_at = clock.monotonic() - state.elapsed.total_seconds()

    @property
    def is_waiting_for_store(self) -> bool:
        return self.is_writing or bool(self.background_writes) or self.finalize_task is not None

    def cancel_writes(self) -> None:
        """Cancel the writes in flight: the store does not answer."""
        for task in (*self.background_writes, self.finalize_task, self.task if self.is_writing else None):
            if task is not None:
                task.cancel()

    def update_elapsed(self) -> None:
        """Set the execution time of the state to that of now."""
        self._state.elapsed = timedelta(seconds=self._clock.monotonic() - self._started_at)

    async def save(self, *, force: bool = False, must_succeed: bool = False) -> bool:
        """Save the state. Return False if that failed; the next save then carries what this one could not.

        Args:
            force: write even if the save interval has not passed.
            must_succeed: interrupt the run if it cannot be saved. Implies `force`.

        Raises:
            NotDurable: it is the first save, and the executor requires durability: the run is not in the store.
            SaveFailed: it must succeed, or the executor requires durability, and the store did not take it.
            MailArrived: it must succeed, and mail refuses it: see `RunState.unless_mail`.
            RunLost, RunParked: as `Checkpointer.save`.
        """
        if self.checkpointer is None:
            return True
        started_at, saved = self._clock.monotonic(), True
        self._state.elapsed = timedelta(seconds=started_at - self._started_at)
        is_own_task = asyncio.current_task() is self.task
        write = self.checkpointer.save(self._state, force=force or must_succeed)
        try:
            if is_own_task:
                self.is_writing = True
                try:
                    await write
                finally:
                    self.is_writing = False
            else:
                await self._write_in_background(write)
        except MailArrived:
            if must_succeed:
                raise
            saved = False  # the task that has set `unless_mail` saves too, and reads the mail
        except RunError:
            raise
        except Exception as exc:  # a store may raise anything: it must never become the run's result
            if must_succeed or self._require_durability:
                raise self._make_error(exc) from exc
            log.warning("run %s: a save failed, the next one will carry it: %s", self._run_id, exc)
            saved = False
        else:
            self.is_stored = True
            self._observers.emit(Saved(self._clock.monotonic() - started_at))
        if is_own_task and self._stop_state.is_stopped:
            raise asyncio.CancelledError
        return saved

    async def verify(self) -> None:
        """Prove before a `once` call that this process still owns the run. Right after a write the store is not asked.

        Raises:
            RunLost: another worker owns it.
            SaveFailed: the store did not answer.
        """
        checkpointer, started_at = self.checkpointer, self._clock.monotonic()
        if checkpointer is None or started_at < checkpointer.proven_until:
            return
        is_own_task = asyncio.current_task() is self.task
        try:
            if is_own_task:
                self.is_writing = True
                try:
                    await checkpointer.verify()
                finally:
                    self.is_writing = False
            else:
                await self._write_in_background(checkpointer.verify())
        except RunError:
            raise
        except Exception as exc:  # a store may raise anything: it must never become the run's result
            raise SaveFailed(f"run {self._run_id} could not prove that this process still owns it: {exc}") from exc
        self._observers.emit(ClaimVerified(self._clock.monotonic() - started_at))
        if is_own_task and self._stop_state.is_stopped:
            raise asyncio.CancelledError

    def check_transaction(self, tool: str, *, in_thread: bool) -> None:
        """Refuse a `transaction` tool that the store of the run cannot call.

        Raises:
            DefinitionError: the run has no such store.
        """
        possible = "none" if self.checkpointer is None else self.checkpointer.transactions
        if possible == "none":
            raise DefinitionError(
                f"tool {tool}: effect is transaction, and the store of the run has no transactions: use a store "
                "in a SQLite file or on PostgreSQL"
            )
        if possible == "sync" and not in_thread:
            raise DefinitionError(
                f"tool {tool}: effect is transaction, and its function is async. In SQLite a transaction holds "
                "the only write lock, so it must not await: write a plain `def`"
            )

    async def transact(self, function: Callable[..., Any], record: Callable[[Any], Callable[[], None]]) -> Any:
        """Call a function that writes to the store's database, and save the state with its result, together.

        `check_transaction` comes before. For the arguments and errors see `Checkpointer.transact`.
        """
        assert self.checkpointer is not None, "check_transaction has refused"
        started_at = self._clock.monotonic()
        self.update_elapsed()
        value = await self.checkpointer.transact(self._state, function, record)
        self._observers.emit(Saved(self._clock.monotonic() - started_at))
        return value

    async def _write_in_background(self, write: Coroutine[Any, Any, None]) -> None:
        """Finish the write even if the task that asks for it is cancelled."""
        task = run_in_background(write)
        self.background_writes.add(task)
        try:
            await shielded(task)
        finally:
            self.background_writes.discard(task)

    def make_end_error(self, failure: Exception | None) -> RunError | None:
        """Return the error of a run whose result the store did not take: its caller must not get the result.

        `None`, if the executor does not require durability, and this process still owns the run.

        Args:
            failure: what the store raised. `None`: it did not answer, and the shutdown did not wait for it.
        """
        if isinstance(failure, RunLost):
            return failure
        if not self._require_durability:
            return None
        reason = "the store did not answer" if failure is None else failure
        return SaveFailed(f"run {self._run_id} has a result that could not be saved, and waits for recovery: {reason}")

    def _make_error(self, error: Exception) -> RunError:
        if not self.is_stored:
            return NotDurable(f"run {self._run_id} was refused: it could not be recorded: {error}")
        return SaveFailed(f"run {self._run_id} could not be saved and waits for recovery: {error}")


class IntentTimer:
    """Saves intents that stay pending for `INTENT_DELAY`: replies whose calls are being made and that are not saved.

    The delay is the same for all, so they come due in the order in which they were scheduled and only the first needs
    a timer of the clock. A timer per step, which is nearly always cancelled, costs 10% of the instructions of a step.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: When each intent comes due, the earliest first.
        self._due_at: dict[ToolCalls, float] = {}
        self._timer: Timer | None = None

    def schedule(self, intent: "ToolCalls") -> None:
        """Save the intent after the delay, unless it is cancelled before."""
        self._due_at[intent] = self._clock.monotonic() + INTENT_DELAY.total_seconds()
        if self._timer is None:
            self._timer = self._clock.call_later(INTENT_DELAY, self._on_timer)

    def cancel(self, intent: "ToolCalls") -> None:
        """Do not save the intent. The timer keeps running for those that are scheduled later."""
        self._due_at.pop(intent, None)

    def clear(self) -> None:
        """Cancel all intents and the timer."""
        self._due_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._due_at:
            intent, due_at = next(iter(self._due_at.items()))
            if due_at - now > _ROUNDING_ERROR_S:
                self._timer = self._clock.call_later(timedelta(seconds=due_at - now), self._on_timer)
                return
            del self._due_at[intent]
            intent.save_intent()
