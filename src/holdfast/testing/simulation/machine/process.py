"""Simulated processes: an event loop, threads, an identity and a clock of their own, in one real process."""

import asyncio
import contextlib
import contextvars
import random
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.checkpoint.workers import PROCESSES, Processes, ProcessIdentity
from holdfast.clock import CLOCK, Timer
from holdfast.concurrency import _BACKGROUND_TASKS, THREADS
from holdfast.ids import RANDOM
from holdfast.testing.simulation.machine.event_loop import SimulatedLoop
from holdfast.testing.simulation.machine.scheduler import Actor, ProcessDied, Scheduler
from holdfast.testing.simulation.machine.threads import SimulatedThreads

T = TypeVar("T")

_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class SimulatedClock:
    """The clock of one process: the world's time plus its own error."""

    def __init__(self, scheduler: Scheduler, skew: timedelta = timedelta(0)) -> None:
        self._scheduler = scheduler
        #: How far `now` is ahead of the world. A clock jump changes it.
        self.skew = skew

    def now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self._scheduler.now) + self.skew

    def monotonic(self) -> float:
        return self._scheduler.now

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(duration.total_seconds())

    def call_later(self, delay: timedelta, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay.total_seconds(), callback)


class SimulatedHost(Processes):
    """The processes of a world, as one of them sees them: at once, or not at all, as in another container."""

    def __init__(self, own: ProcessIdentity, table: "dict[int, SimulatedProcess]") -> None:
        self._own, self._table = own, table

    def identify_own(self) -> ProcessIdentity:
        return self._own

    def is_alive(self, process: ProcessIdentity) -> bool | None:
        if process == self._own:
            return True
        return None if process.host != self._own.host else self._table[process.pid].is_alive


class SimulatedProcess:
    """One process of a simulated world. `kill` ends it between two callbacks, or at a call of its disk."""

    def __init__(self, name: str, surroundings: "Surroundings", skew: timedelta) -> None:
        scheduler, number = surroundings.scheduler, len(surroundings.table) + 1
        self.name, self.number = f"{name}.{number}", number
        surroundings.table[number] = self
        self._scheduler = scheduler
        self.is_alive = True
        self.is_frozen = self.was_frozen = False
        #: Actors that became ready while the process was frozen.
        self.held: list[Actor] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.threads = SimulatedThreads(scheduler, self, surroundings.gate)
        self.loop = SimulatedLoop(scheduler, self)  # type: ignore[abstract] # no sockets, no pipes
        self.clock = SimulatedClock(scheduler, skew)
        namespace = number if surroundings.by_lease else 0
        identity = ProcessIdentity(host=f"simulated/boot/{namespace}", pid=number, started=str(number))
        self.random = random.Random(surroundings.seed * 1_000_003 + number)
        self.main: asyncio.Task[None] | None = None
        self._context = contextvars.Context()
        self.bind(RANDOM, self.random)
        self.bind(THREADS, self.threads)
        self.bind(CLOCK, self.clock)
        self.bind(PROCESSES, SimulatedHost(identity, surroundings.table))
        #: Called when it is killed.
        self.on_death: list[Callable[[SimulatedProcess], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def check_alive(self) -> None:
        if not self.is_alive:
            raise ProcessDied

    def bind(self, variable: contextvars.ContextVar[T], value: T) -> None:
        """Give a context variable its value in all that the process will do."""
        self._context.run(variable.set, value)

    def make_random(self) -> random.Random:
        """Return a source of random numbers that other code of the process does not draw from."""
        return random.Random(self.random.random())

    def copy_context(self) -> contextvars.Context:
        return self._context.copy()

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Run `main` as `asyncio.run` does. The process has ended when it returns."""
        self.loop.call_soon(self._start_main, main, context=self.copy_context())

    def _start_main(self, main: Coroutine[Any, Any, None]) -> None:
        self.main = self.loop.create_task(main)
        self.main.add_done_callback(self._end_loop)

    def _end_loop(self, task: asyncio.Task[None]) -> None:
        # It belongs to the loop, not to the program: no other task cancels it.
        asyncio._unregister_task(self.loop.create_task(self._cancel_rest()))

    async def _cancel_rest(self) -> None:
        """Do what `asyncio.run` does when its coroutine has returned."""
        await asyncio.gather(*self._cancel_tasks(), return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        self.loop.close()
        self.kill()

    def end_event_loop(self) -> None:
        """Cancel the main task, as Ctrl-C does under `asyncio.run`."""
        if self.main is not None:
            self.loop.call_soon(self.main.cancel)

    def cancel_all_tasks(self) -> None:
        """Cancel every task that asyncio lists, at once."""
        self.loop.call_soon(self._cancel_tasks)

    def _cancel_tasks(self) -> list[asyncio.Task[Any]]:
        # In the order in which they were made: that of the set depends on all worlds before.
        listed = asyncio.all_tasks(self.loop)
        tasks = [task for task in self.tasks if task in listed]
        for task in tasks:
            task.cancel()
        return tasks

    def kill(self) -> None:
        """End the process as SIGKILL does: no further callback, thread or write. `bury` frees what it held."""
        if self.is_alive:
            self.is_alive = False
            for callback in self.on_death:
                callback(self)

    def bury(self) -> None:
        """Unwind the threads of a dead process. Between two slices only."""
        self._scheduler.remove(self)
        self.held.clear()
        self.loop.drop()
        self.threads.drop()

    def forget(self) -> None:
        """Close the coroutines of a dead process, at the end of its world."""
        asyncio._set_running_loop(self.loop)  # else asyncio makes one of the host for their `finally` blocks
        for task in self.tasks:  # a `finally` block may add one
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        asyncio._set_running_loop(None)
        _BACKGROUND_TASKS.difference_update(self.tasks)
        self.tasks.clear()

    def freeze(self) -> None:
        """Stop the process as SIGSTOP does."""
        if self.is_alive and not self.is_frozen:
            self.is_frozen = self.was_frozen = True
            self._scheduler.freeze(self)

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            self._scheduler.thaw(self)


class Surroundings:
    """What all processes of a world share."""

    def __init__(self, scheduler: Scheduler, seed: int, *, by_lease: bool) -> None:
        self.scheduler, self.seed, self.by_lease = scheduler, seed, by_lease
        #: Held while the scheduler's own thread runs.
        self.gate = threading.Lock()
        self.gate.acquire()
        #: All processes, dead ones included, by pid.
        self.table: dict[int, SimulatedProcess] = {}
