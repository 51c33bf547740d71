"""A thread for a battery's database: one that hangs holds up neither the event loop nor the end of the process."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.db.errors import TablesError

_T = TypeVar("_T")


class DatabaseThread:
    """Does what it is given, one after the other."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = False
        #: Set when it takes no more.
        self.closed = threading.Event()

    def submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Done with what `work` gives. Cancelled before its turn, it is not done.

        Raises:
            TablesError: the thread takes no more.
        """
        if self.closed.is_set():
            raise TablesError("the tables were closed")
        done: Future[_T] = Future()
        self._enqueue(done, work)
        return asyncio.wrap_future(done)

    def shutdown(self, final_work: Callable[[], None]) -> asyncio.Future[None]:
        """Take no more. Done when all that waits is done, and then `last`, which happens whoever stops waiting."""
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
            # An executor's threads are waited for when the process ends.
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
    except BaseException as exc:  # whoever waits gets it, whatever it is
        done.set_exception(exc)
    else:
        done.set_result(result)
