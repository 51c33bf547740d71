"""Threads that wait for the disk in place of the event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    """Something to be done, and then what came of it."""

    __slots__ = ("_error", "_result", "done", "waiting", "work")

    def __init__(self, work: Callable[[], T], waiting: asyncio.Future[None]) -> None:
        self.work, self.waiting = work, waiting
        self.done = False
        self._error: BaseException | None
        self._result: T

    def run(self) -> None:
        try:
            self._result = self.work()
            self._error = None
        except BaseException as error:  # whoever waits gets it, whatever it is
            self._error = error

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result


class Threads:
    """Does work for the tasks of one event loop, in up to `most` threads at a time.

    Not an executor: what ends at about the same time wakes the loop once, which is a good part of what a save costs
    when many runs save at once.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []
        self._waiting: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._under_way = 0
        self._nothing_under_way = asyncio.Event()
        self._ended: deque[_Job[Any]] = deque()
        #: The loop was told of what has ended, and has not looked yet.
        self._told = False

    async def do(self, work: Callable[[], T]) -> T:
        """The result of `work`. A caller that is cancelled still waits for its end."""
        if self._under_way >= len(self._threads) < self._most:
            self._start_another()
        job = _Job(work, self._loop.create_future())
        self._under_way += 1
        self._waiting.put(job)
        try:
            await job.waiting
        except asyncio.CancelledError:
            while not job.done:
                job.waiting = self._loop.create_future()
                with contextlib.suppress(asyncio.CancelledError):
                    await job.waiting
            raise
        try:
            return job.outcome()
        finally:
            del job  # an error would have its own traceback in it

    async def finish(self, last: Callable[[], None]) -> None:
        """Wait until everything is done, do the `last` thing, and end the threads. Nothing may be asked for any more.

        A caller that is cancelled still waits for that.
        """
        cancel: asyncio.CancelledError | None = None
        while self._under_way:
            self._nothing_under_way.clear()
            try:
                await self._nothing_under_way.wait()
            except asyncio.CancelledError as error:
                cancel = error
        try:
            await self.do(last)
        finally:
            for _ in self._threads:
                self._waiting.put(None)
            for thread in self._threads:
                thread.join()
        if cancel is not None:
            raise cancel

    def _start_another(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            job.run()
            self._ended.append(job)
            # What has ended is there before this is looked at: whoever clears it afterwards finds it.
            if not self._told:
                self._told = True
                # A loop that was closed has nobody left who waits.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        """In the loop: wake those whose work has ended."""
        self._told = False
        while self._ended:
            job = self._ended.popleft()
            job.done = True
            self._under_way -= 1
            if not job.waiting.done():
                job.waiting.set_result(None)
        if not self._under_way:
            self._nothing_under_way.set()
