"""The event loop of a simulated process: callbacks in order, timers in virtual time."""

import asyncio
import contextvars
import itertools
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from holdfast.testing.simulation.machine.scheduler import ProcessDied, Scheduler
from holdfast.testing.simulation.machine.threads import SimulatedExecutor

if TYPE_CHECKING:
    from holdfast.testing.simulation.machine.process import SimulatedProcess

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SimulatedFuture(asyncio.Future[Any]):
    """A future whose hash is its number: sets of futures have the same order in every run of a seed."""

    def __init__(self, number: int, loop: "SimulatedLoop") -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedTask(asyncio.Task[Any]):
    """A task whose hash is its number, as that of a `SimulatedFuture`."""

    def __init__(self, number: int, coro: Generator[Any, None, Any] | Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Callbacks run in the order of `call_soon`, as asyncio promises. Other processes may run between any two."""

    def __init__(self, scheduler: Scheduler, process: "SimulatedProcess") -> None:
        self._scheduler = scheduler
        self.process = process
        self.is_queued = False
        self._numbers = itertools.count()
        self._ready: deque[asyncio.Handle] = deque()
        self._is_closed = self._has_ended = False
        self._executor = SimulatedExecutor(process.threads)
        self._generators: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        #: Callbacks that a kill prevented.
        self.dropped: list[asyncio.Handle] = []
        #: What asyncio reported: exceptions that no task has retrieved.
        self.errors: list[dict[str, Any]] = []

    def run_slice(self) -> bool:
        ready = self._ready
        if not ready:
            return False
        handle = ready.popleft()
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            except ProcessDied:
                pass
            finally:
                asyncio._set_running_loop(None)
        return bool(ready) and self.process.is_alive

    def drop(self) -> None:
        """Forget all callbacks: the process was killed. Its coroutines are kept, so that no `finally` runs."""
        self._is_closed = True
        self.dropped += self._ready
        self._ready.clear()

    # -- callbacks ----------------------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self._is_closed:
            if self.process.is_alive:
                raise RuntimeError("Event loop is closed")
            return handle
        self._ready.append(handle)
        self._scheduler.add_ready(self)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def fire() -> None:
            if not handle.cancelled() and not self._is_closed:
                self._ready.append(handle)
                self._scheduler.add_ready(self)

        self._scheduler.call_at(when, fire, self.process)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Asyncio calls this. `fire` looks."""

    def time(self) -> float:
        return self._scheduler.now

    # -- futures, tasks, threads --------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(next(self._numbers), self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        task = SimulatedTask(next(self._numbers), coro, loop=self, name=name, context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # a killed process destroys its tasks
        self.process.tasks.append(task)
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        return asyncio.wrap_future((executor or self._executor).submit(func, *args), loop=self)

    def set_default_executor(self, executor: Executor) -> None:
        raise NotImplementedError

    # -- life ---------------------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the loop was closed, not dropped."""
        return self._has_ended

    def is_running(self) -> bool:
        return not self._is_closed

    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        self._is_closed = self._has_ended = True
        self._ready.clear()

    def get_debug(self) -> bool:
        return False

    def add_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.add(generator)

    def finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators.discard(generator)
        if not self._is_closed:
            self.call_soon(self.create_task, generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        closing = [generator.aclose() for generator in self._generators]
        self._generators.clear()
        await asyncio.gather(*closing, return_exceptions=True)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Threads of the process end with it."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), ProcessDied) and self.process.is_alive:
            self.errors.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)
