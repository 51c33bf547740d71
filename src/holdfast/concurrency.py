"""Tasks that finish although their caller is cancelled, timeouts, and threads: the only module that starts threads."""

import asyncio
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from holdfast.clock import Clock, Timer

T = TypeVar("T")

log: logging.Logger = logging.getLogger("holdfast.run")

#: Keeps tasks from being garbage-collected: the event loop holds only weak references.
_BACKGROUND_TASKS: set[asyncio.Task[Any]] = set()

#: During a shutdown, the time that a store or a port has to answer.
SHUTDOWN_STORE_TIMEOUT = timedelta(seconds=5)


async def shielded(work: Awaitable[Any], *, suppress_cancel: bool = False) -> None:
    """Wait until `work` is done. A cancel of the caller meanwhile is raised afterwards, or suppressed."""
    task = run_in_background(work) if asyncio.iscoroutine(work) else asyncio.ensure_future(work)
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancel = exc
        except BaseException:  # of `work`: raised below, unless the caller was cancelled
            break
    if cancel is not None and not suppress_cancel:
        if not task.cancelled():
            task.exception()  # mark as retrieved: the cancel is raised instead
        raise cancel
    task.result()


async def run_with_timeout(timeout: timedelta, work: Coroutine[Any, Any, None], clock: Clock) -> bool:
    """Run `work` with a timeout. It is cancelled every `timeout` until it stops. Return False if it was cancelled.

    Raises what `work` raises.
    """
    task = run_in_background(work)
    timer: Timer | None = None

    def wait() -> None:
        nonlocal timer
        timer = clock.call_later(timeout, stop)

    def stop() -> None:
        task.cancel()
        wait()

    wait()
    try:
        await asyncio.wait([task])
    finally:
        if timer is not None:
            timer.cancel()
        task.cancel()
    if task.cancelled():
        return False
    task.result()
    return True


async def close_with_timeout(name: str, close: Callable[[], Coroutine[Any, Any, None]], clock: Clock) -> None:
    """Close a store or a port at the end of a shutdown. An error is logged: it must not mask why the host stops."""
    try:
        if not await run_with_timeout(SHUTDOWN_STORE_TIMEOUT, close(), clock):
            log.error("%s does not answer, and was left without being closed", name)
    except Exception as exc:  # a host's own store or port may raise anything
        log.error("%s could not be closed: %s", name, exc, exc_info=exc)


def run_in_background(work: Coroutine[Any, Any, T], *, name: str | None = None) -> "asyncio.Task[T]":
    """Start `work` in a task that only its owner cancels.

    `asyncio.run` cancels all tasks of a loop that ends, also those that write to a store, and so may a host. This task
    is not listed in `asyncio.all_tasks`. A task that is listed has to wait for it, or the loop ends before it does.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    asyncio._unregister_task(task)  # public by docs.python.org/3/library/asyncio-extending.html
    _BACKGROUND_TASKS.add(task)
    task.add_done_callback(_BACKGROUND_TASKS.discard)
    return task


# -- threads ----------------------------------------------------------------------------------------------------------


#: What `Threads.start` returns.
Thread = threading.Thread


class Threads:
    """Starts threads, and makes what they wait for: locks, queues, time.

    A simulator overrides every method: its threads take turns in an order that it chooses, by a time of its own.
    """

    def start(self, work: Callable[[], object], *, name: str) -> Thread:
        """Start a daemon thread: the interpreter does not wait for it when the process exits."""
        thread = Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def make_lock(self) -> threading.Lock:
        return threading.Lock()

    def make_condition(self) -> threading.Condition:
        return threading.Condition()

    def make_event(self) -> threading.Event:
        return threading.Event()

    def make_queue(self) -> "SimpleQueue[Any]":
        return SimpleQueue()

    #: The time by which threads wait, in seconds. Not wrapped: each commit reads it twice.
    monotonic = staticmethod(time.monotonic)

    def processor_time(self) -> float:
        """Return the seconds of processor time that the calling thread has used."""
        return time.thread_time()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


_SYSTEM_THREADS = Threads()

#: The threads of this process. A simulator sets its own in the context of each simulated process.
THREADS: ContextVar[Threads] = ContextVar("holdfast_threads", default=_SYSTEM_THREADS)


class JobThread:
    """A daemon thread that runs blocking jobs one after the other. It starts with the first one.

    If one hangs, neither the event loop nor the end of the process waits for it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads = THREADS.get()
        #: `None` ends the thread.
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = self._threads.make_queue()
        self._is_started = False
        #: Whether it accepts no more jobs.
        self.is_closed = False

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Return a future of the result of `work`. If it is cancelled before its turn, `work` does not run."""
        return self._enqueue(Future(), work)

    async def close(self, final_work: Callable[[], None]) -> None:
        """Accept no more jobs. `final_work` runs after the others, even if the caller is cancelled."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._is_started:
            done: Future[None] = Future()
            done.set_running_or_notify_cancel()  # it can no longer be cancelled
            closed = self._enqueue(done, final_work)
            self._queue.put(None)
            await closed

    def _enqueue(self, done: "Future[T]", work: Callable[[], T]) -> "asyncio.Future[T]":
        self._queue.put((done, work))
        if not self._is_started:
            self._is_started = True
            self._threads.start(self._run_jobs, name=self._name)
        return asyncio.wrap_future(done)

    def _run_jobs(self) -> None:
        while (job := self._queue.get()) is not None:
            _run_job(*job)
            del job


def _run_job(done: "Future[T]", work: Callable[[], T]) -> None:
    if not (done.running() or done.set_running_or_notify_cancel()):
        return
    try:
        result = work()
    except BaseException as exc:  # re-raised in the caller
        done.set_exception(exc)
    else:
        done.set_result(result)


def get_thread_id() -> int:
    """Return the id of the calling thread, as in `sys._current_frames`."""
    return threading.get_ident()


def has_system_threads() -> bool:
    """Whether threads run by themselves and in real time: no simulator has replaced them."""
    return THREADS.get() is _SYSTEM_THREADS


def is_main_thread() -> bool:
    """Whether the caller runs in the main thread, which alone may handle signals."""
    return threading.current_thread() is threading.main_thread()


def end_forked_child(error: BaseException) -> NoReturn:
    """End this process, a child that was forked while an App was open, with the exit code of `error`.

    It shares the selector of the event loop and the connections of the store with its parent, which it would break,
    and it would wait for threads that it does not have.
    """
    exit_error: BaseException | None = error
    while exit_error is not None and not isinstance(exit_error, SystemExit):
        exit_error = exit_error.__context__  # asyncio refuses to work in the child, which may hide the exit
    code = 1 if exit_error is None else exit_error.code
    if exit_error is None:
        traceback.print_exception(error)
    elif code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
