"""A daemon thread for a blocking database: if it hangs, neither the event loop nor the end of the process waits."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.db.errors import TablesError

_T = TypeVar("_T")


class DatabaseThread:
    """Runs jobs one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = False
        #: Set when it accepts no more jobs.
        self.closed = threading.Event()

    def submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Return a future of the result of `work`. If it is cancelled before its turn, `work` does not run.

        Raises:
            TablesError: the thread accepts no more jobs.
        """
        if self.closed.is_set():
            raise TablesError("the tables were closed")
        done: Future[_T] = Future()
        self._enqueue(done, work)
        return asyncio.wrap_future(done)

    def shutdown(self, final_work: Callable[[], None]) -> asyncio.Future[None]:
        """Accept no more jobs. Return a future of `final_work`, which runs last, even if the caller is cancelled."""
        self.closed.set()
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled any more
        self._enqueue(done, final_work)
        self._queue.put(None)
        return asyncio.wrap_future(done)

    def _enqueue(self, done: Future[_T], work: Callable[[], _T]) -> None:
        self._queue.put((done, work))
        if not self._started:
            self._started = True
            # The interpreter joins the threads of an executor at exit, but not a daemon thread.
            threading.Thread(target=self._run_queue, name="holdfast-tables", daemon=True).start()

    def _run_queue(self) -> None:
        while (job := self._queue.get()) is not None:
            _run_work(*job)
            del job


def _run_work(done: Future[_T], work: Callable[[], _T]) -> None:
    if not (done.running() or done.set_running_or_notify_cancel()):
        return
    try:
        result = work()
    except BaseException as exc:  # re-raised in the caller
        done.set_exception(exc)
    else:
        done.set_result(result)
