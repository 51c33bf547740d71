"""When the code of a workflow is unwound: no step is in progress, and those that wait need time or mail."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from holdfast.clock import Timer
from holdfast.core.errors import DefinitionError, RunError
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.waits import Waits
from holdfast.core.run.mail import CHILD_TOPIC

#: Tasks of a workflow may run code of their own while all its steps wait. They are unwound when they have made no new
#: step for this time.
QUIET_PERIOD = timedelta(seconds=1)

#: Turns of the event loop in which a task that got a result begins its next step.
_SETTLING_TURNS = 10


#: An `asyncio.timeout` around a wait is waited out in the process if it ends within this time.
MAX_TIMEOUT = timedelta(seconds=5)


def find_timeout(tasks: Iterable["asyncio.Task[Any]"]) -> timedelta | None:
    """Return how long the first `asyncio.timeout` or `asyncio.wait` of these tasks still takes; `None` without one.

    asyncio has no public way to ask, and other event loops than its own have none: then there seems to be none.
    """
    loop, known = asyncio.get_running_loop(), {task for task in tasks if not task.done()}
    # The future that a task waits for. `asyncio.wait` has a timer that resolves it.
    waiters = {id(getattr(task, "_fut_waiter", None)) for task in known}
    ends: list[float] = []
    for handle in getattr(loop, "_scheduled", ()):
        callback, arguments = getattr(handle, "_callback", None), getattr(handle, "_args", None) or ()
        owner = getattr(callback, "__self__", None)
        is_timeout = isinstance(owner, asyncio.Timeout) and getattr(owner, "_task", None) in known
        is_wait = getattr(callback, "__name__", "") == "_release_waiter" and not waiters.isdisjoint(map(id, arguments))
        if not handle.cancelled() and (is_timeout or is_wait):
            ends.append(handle.when())
    return timedelta(seconds=max(0.0, min(ends) - loop.time())) if ends else None


class Unwind(BaseException):
    """Ends the code of a workflow that has to wait or to stop. `except Exception` does not catch it."""


class _Rest:
    """What one task rests for."""

    __slots__ = ("call_id", "for_cancel", "for_next_step", "future")

    def __init__(self, call_id: str, *, for_next_step: bool = False, for_cancel: bool = False) -> None:
        self.call_id, self.for_next_step, self.for_cancel = call_id, for_next_step, for_cancel
        #: True: the task may continue. False: no task has made a step for a while.
        self.future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def wake(self, value: bool = True) -> None:
        if not self.future.done():
            self.future.set_result(value)


class Suspension:
    """Knows which tasks of a workflow work and which rest, and unwinds them when none can continue."""

    def __init__(self, attempt: Attempt, waits: Waits) -> None:
        self._attempt, self._waits = attempt, waits
        self._root = asyncio.current_task()
        #: All tasks that make steps.
        self._tasks: set[asyncio.Task[Any]] = {self._root} if self._root is not None else set()
        self._working = 0
        self._resting: dict[asyncio.Task[Any], _Rest] = {}
        #: Tasks that only wait for other tasks of the workflow.
        self._joining: set[asyncio.Task[Any]] = set()
        self._stop_error: BaseException | None = None
        self._timer: Timer | None = None
        #: Another one after every step. A check that was scheduled before is void.
        self._change = object()
        #: The error that ends the attempt, once the code is unwound.
        self.error: BaseException | None = None
        #: The code has ended.
        self.closed = False

    # -- work and rest ------------------------------------------------------------------------------------------------

    def on_step(self) -> None:
        """The code has asked for a step."""
        self._change = object()
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
        if self._resting:
            for rest in list(self._resting.values()):
                if rest.for_next_step:
                    rest.wake()
            self._schedule_check()  # a step that is recorded has no work after which it would be checked

    def begin_work(self) -> None:
        """The current task makes a step."""
        self._working += 1

    def end_work(self) -> None:
        self._working -= 1
        if self._resting:
            self._schedule_check()

    async def rest(self, call_id: str = "") -> None:
        """Let the current task rest, within its work, until its call may have an answer.

        Raises:
            Unwind: the code ends here.
        """
        await self._rest(_Rest(call_id))

    async def rest_until_next_step(self) -> bool:
        """Return True when another task has made a step, False if none does."""
        return await self._rest(_Rest("", for_next_step=True))

    async def rest_until_cancelled(self) -> None:
        """Let the code cancel the current task, as it has done before. Return if no task can do that any more."""
        self.begin_work()
        try:
            await self._rest(_Rest("", for_cancel=True))
        finally:
            self.end_work()

    async def _rest(self, rest: _Rest) -> bool:
        task = asyncio.current_task()
        if task is None:
            raise RunError("a step of a workflow was made outside of a task")
        if self.closed:  # nothing would wake it: its task was cancelled during a write, which has failed
            raise Unwind
        self._resting[task] = rest
        self._working -= 1
        self._schedule_check()
        try:
            return await rest.future
        finally:
            self._working += 1
            del self._resting[task]

    def join(self, tasks: "set[asyncio.Task[Any]]") -> None:
        """The current task only waits for these until `end_join`."""
        self._tasks |= tasks
        if (task := asyncio.current_task()) is not None:
            self._joining.add(task)

    def end_join(self) -> None:
        if (task := asyncio.current_task()) is not None:
            self._joining.discard(task)

    def stop(self, error: BaseException) -> None:
        """End the attempt with this error as soon as no step is in progress."""
        self._stop_error = self._stop_error or error

    # -- the check ----------------------------------------------------------------------------------------------------

    def _schedule_check(self) -> None:
        if not self._working and self._resting and self.error is None and not self.closed:
            self._change = object()
            self._settle(self._change, _SETTLING_TURNS)

    def _settle(self, change: object, turns: int) -> None:
        if change is not self._change or self._working or self.closed:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._settle, change, turns - 1)
        elif self._stop_error is not None or self._all_rest():
            self._finish(change)
        else:
            self._start_timer(QUIET_PERIOD, self._finish, change)

    def _start_timer(self, delay: timedelta, callback: Any, *args: Any) -> None:
        self._cancel_timer()
        self._timer = self._attempt.services.clock.call_later(delay, lambda: callback(*args))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _all_rest(self) -> bool:
        """Whether every task of the workflow waits, as far as they are known."""
        waiting = {task for task, rest in self._resting.items() if not rest.for_next_step}
        return all(task.done() or task in waiting or task in self._joining for task in self._tasks)

    def _finish(self, change: object) -> None:
        """No task has made a step since: wake those that may continue, or unwind the code."""
        if change is not self._change or self._working or self.closed or self.error is not None:
            return
        if self._stop_error is None:
            rests = list(self._resting.values())
            ready = [rest for rest in rests if rest.call_id and not self._waits.is_open(rest.call_id)]
            undecided = [rest for rest in rests if rest.for_next_step or rest.for_cancel]
            if ready or undecided:
                if ready:  # such a notice wakes all that wait for a child: the others would be woken by it without end
                    self._attempt.mailbox.take_all(CHILD_TOPIC)
                for rest in ready or undecided:
                    rest.wake(bool(ready))
                return
            if (remaining := find_timeout(self._tasks)) is not None:
                if remaining <= MAX_TIMEOUT:  # it ends the wait in this process
                    self._start_timer(remaining + QUIET_PERIOD, self._finish, change)
                    return
                self._stop_error = DefinitionError(
                    "asyncio.timeout or asyncio.wait(timeout=...) is around a wait that holds no process, and cannot "
                    "end it: give the wait a timeout, or use first()"
                )
        # An answer or a time that no task waits for would resume the run again and again.
        awaited = {rest.call_id for rest in self._resting.values()}
        self.error = self._stop_error or self._waits.make_error(awaited)
        for rest in self._resting.values():
            if not rest.future.done():
                rest.future.set_exception(Unwind())
        self._start_timer(QUIET_PERIOD, self._cancel_root)

    def _cancel_root(self) -> None:
        """Cancel a function that waits for something else than its steps."""
        if not self.closed and self._root is not None:
            self._root.cancel()

    async def close(self) -> None:
        """The function has ended: end the tasks that it has left behind."""
        self.closed = True
        await self.end_tasks()

    @property
    def pending_error(self) -> BaseException | None:
        """The error that ends the attempt, or will do so when the code is unwound."""
        return self.error or self._stop_error

    @property
    def is_unwinding(self) -> bool:
        """Whether the code ends here: it makes no further step."""
        return self.error is not None or self.closed or self._attempt.stop_state.is_stopped

    def reset(self) -> None:
        """Accept further steps: the code has ended, and its steps are undone."""
        self.error = self._stop_error = None

    async def end_tasks(self) -> None:
        """End the tasks that the function has left behind."""
        self._cancel_timer()
        left = {task for task in self._tasks if task is not self._root and not task.done()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.gather(*left, return_exceptions=True)
