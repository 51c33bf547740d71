"""Threads of simulated processes: real ones, of which the scheduler lets one run at a time."""

import contextlib
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from holdfast.concurrency import Threads
from holdfast.testing.simulation.machine.scheduler import ProcessDied, Scheduler

if TYPE_CHECKING:
    from holdfast.testing.simulation.machine.process import SimulatedProcess

T = TypeVar("T")

#: Threads that wait for less wake up late, as on a busy machine: most of them poll, and each poll is two switches.
_TIMER_SLACK_S = 0.5
#: Threads that sleep for less poll a lock of SQLite, which a frozen process or a slow disk holds for seconds.
_POLL_S, _LATE_POLL_S = 0.002, 0.05


class _PooledThread:
    """A real thread that runs the bodies of simulated threads, one after the other."""

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.work: Callable[[], None] | None = None
        threading.Thread(target=self._run, daemon=True, name="simulated").start()

    def _run(self) -> None:
        while True:
            self.gate.acquire()
            work, self.work = self.work, None
            assert work is not None
            work()


#: Real threads that run nothing, of all worlds.
_IDLE: list[_PooledThread] = []


class SimulatedThread:
    """A thread of a simulated process. It runs from one blocking call to the next."""

    def __init__(self, host: "SimulatedThreads", target: Callable[[], Any], name: str) -> None:
        self._host, self._target, self.name = host, target, name
        self.process = host.process
        self.is_queued = False
        self._os_thread: _PooledThread | None = None
        self._has_ended = False
        self._joining: list[SimulatedThread] = []

    def __repr__(self) -> str:
        return f"<{self.process.name} thread {self.name}>"

    def is_alive(self) -> bool:
        return not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        if self._has_ended:
            return
        self._host.wait(self._joining, lambda: self._has_ended, timeout)

    def run_slice(self) -> bool:
        """In the scheduler's thread: run until the thread blocks or ends."""
        if self._os_thread is None:
            self._os_thread = _IDLE.pop() if _IDLE else _PooledThread()
            self._os_thread.work = self._run
        self._os_thread.gate.release()
        self._host.gate.acquire()
        return False

    def pause(self) -> None:
        """In this thread: let others run until the scheduler picks it again."""
        assert self._os_thread is not None
        self._host.gate.release()
        self._os_thread.gate.acquire()
        if not self.process.is_alive:
            raise ProcessDied

    def _run(self) -> None:
        self._host.local.thread = self
        with contextlib.suppress(ProcessDied):
            try:
                if self.process.is_alive:
                    self.process.copy_context().run(self._target)
            except Exception as exc:  # reported as asyncio reports what no task retrieved
                self.process.loop.call_exception_handler({"message": f"thread {self.name}", "exception": exc})
        self._has_ended = True
        self._host.wake(self._joining)
        if self in self._host.threads:
            self._host.threads.remove(self)
        assert self._os_thread is not None
        _IDLE.append(self._os_thread)
        self._host.gate.release()


class SimulatedThreads(Threads):
    """The threads of one simulated process, and what they wait for."""

    def __init__(self, scheduler: Scheduler, process: "SimulatedProcess", gate: threading.Lock) -> None:
        self.scheduler, self.process = scheduler, process
        #: Blocks the scheduler's thread while a simulated one runs; shared by all processes of a world.
        self.gate = gate
        self.threads: list[SimulatedThread] = []
        self.local = _LOCAL

    @property
    def in_thread(self) -> bool:
        """Whether a simulated thread runs now, not an event loop."""
        return getattr(self.local, "thread", None) is not None

    def drop(self) -> None:
        """Unwind all threads: the process was killed. What they do meanwhile has no effect."""
        for thread in list(self.threads):
            if thread._os_thread is not None and thread is not getattr(self.local, "thread", None):
                thread.run_slice()
        self.threads.clear()

    def wait(self, waiters: list[SimulatedThread], is_done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block the calling thread until `is_done`, which `wake(waiters)` announces. Return False after `timeout`."""
        scheduler = self.scheduler
        if not self.process.is_alive:
            raise ProcessDied
        deadline = None if timeout is None else scheduler.now + timeout
        thread: SimulatedThread | None = getattr(self.local, "thread", None)
        if thread is None:  # the event loop blocks

            def is_over() -> bool:
                return is_done() or (deadline is not None and scheduler.now >= deadline)

            if deadline is not None:
                scheduler.call_at(deadline, _do_nothing, self.process)
            scheduler.run_threads_until(is_over)
            return is_done()
        timer = None
        if deadline is not None:
            timer = scheduler.call_at(deadline, lambda: scheduler.add_ready(thread), self.process)
        try:
            while not is_done():
                if deadline is not None and scheduler.now >= deadline:
                    return False
                waiters.append(thread)
                try:
                    thread.pause()
                finally:
                    if thread in waiters:
                        waiters.remove(thread)
        finally:
            if timer is not None:
                timer.cancel()
        return True

    def wake(self, waiters: list[SimulatedThread]) -> None:
        for thread in waiters:
            self.scheduler.add_ready(thread)

    # -- what product code asks for ------------------------------------------------------------------------------

    def start(self, work: Callable[[], object], *, name: str) -> SimulatedThread:  # type: ignore[override]
        thread = SimulatedThread(self, work, name)
        self.threads.append(thread)
        self.scheduler.add_ready(thread)
        return thread

    def make_lock(self) -> "SimulatedLock":  # type: ignore[override]
        return SimulatedLock(self)

    def make_condition(self) -> "SimulatedCondition":  # type: ignore[override]
        return SimulatedCondition(self)

    def make_event(self) -> "SimulatedEvent":  # type: ignore[override]
        return SimulatedEvent(self)

    def make_queue(self) -> "SimulatedQueue[Any]":  # type: ignore[override]
        return SimulatedQueue(self)

    def monotonic(self) -> float:
        return self.scheduler.now

    def processor_time(self) -> float:
        return self.scheduler.now

    def sleep(self, seconds: float) -> None:
        self.wait([], lambda: False, _LATE_POLL_S if 0 < seconds <= _POLL_S else seconds)


_LOCAL = threading.local()


def _do_nothing() -> None:
    pass


class SimulatedQueue(Generic[T]):
    """`queue.SimpleQueue` of simulated threads."""

    def __init__(self, host: SimulatedThreads) -> None:
        self._host = host
        self._items: deque[T] = deque()
        self._waiters: list[SimulatedThread] = []

    def put(self, item: T) -> None:
        self._items.append(item)
        self._host.wake(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if block and not self._host.wait(self._waiters, self._has_items, timeout):
            raise queue.Empty
        return self.get_nowait()

    def get_nowait(self) -> T:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def _has_items(self) -> bool:
        return bool(self._items)


class SimulatedLock:
    """`threading.Lock` of simulated threads."""

    def __init__(self, host: SimulatedThreads) -> None:
        self._host = host
        self._is_held = False
        self._waiters: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held:
            if not blocking:
                return False
            if not self._host.wait(self._waiters, lambda: not self._is_held, None if timeout < 0 else timeout):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        self._host.wake(self._waiters)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class SimulatedCondition(SimulatedLock):
    """`threading.Condition` of simulated threads."""

    def __init__(self, host: SimulatedThreads) -> None:
        super().__init__(host)
        self._notified: list[SimulatedThread] = []

    def __enter__(self) -> Self:  # type: ignore[override]
        self.acquire()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        return self.wait_for(iter((False, True)).__next__, timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        if timeout is not None and timeout > 0:
            timeout = max(timeout, _TIMER_SLACK_S)
        self.release()
        try:
            return self._host.wait(self._notified, predicate, timeout)
        finally:
            self.acquire()

    def notify(self, n: int = 1) -> None:
        self._host.wake(self._notified)

    notify_all = notify


class SimulatedEvent:
    """`threading.Event` of simulated threads."""

    def __init__(self, host: SimulatedThreads) -> None:
        self._host = host
        self._is_set = False
        self._waiters: list[SimulatedThread] = []

    def set(self) -> None:
        self._is_set = True
        self._host.wake(self._waiters)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._host.wait(self._waiters, self.is_set, timeout)


class SimulatedExecutor(Executor):
    """Starts a simulated thread for each call."""

    def __init__(self, host: SimulatedThreads) -> None:
        self._host = host

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future: Future[T] = Future()
        context = contextvars.copy_context()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(fn, *args, **kwargs)
            except ProcessDied:
                raise
            except BaseException as exc:  # re-raised in the caller
                future.set_exception(exc)
            else:
                future.set_result(result)

        self._host.start(run, name="executor")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """The threads end by themselves."""
