"""Where random sequences of calls take place: a store to call, a store to look at, and processes that may die."""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.liveness import ProcessIdentity, this_process
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import ChildProcess, ProcessGone, StoreProcess

T = TypeVar("T")
Quiet = Callable[[str, ProcessIdentity], Awaitable[None]]


class World:
    """One store in this process, called and looked at."""

    def __init__(self, build: Callable[[], CheckpointStore], seconds: float) -> None:
        self.build = build
        self.runner = asyncio.Runner()
        self._end = time.monotonic() + seconds
        self.reader = self.build()
        self.run(self.reader.open())

    @property
    def store(self) -> CheckpointStore:
        """The store that is called."""
        return self.reader

    def is_over(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() > self._end

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def worker(self) -> Worker:
        """A new worker in the process of the store that is called."""
        return Worker(worker_id=f"worker-{uuid.uuid4().hex}", process=self.process())

    def process(self) -> ProcessIdentity:
        return this_process()

    def close(self) -> None:
        try:
            self.run(self.reader.close())
        finally:
            self.runner.close()


class CrashingWorld(World):
    """The store that is called is in a child process, which can be killed in the middle of a call."""

    def __init__(
        self, build: Callable[[], CheckpointStore], seconds: float, *, factory: str, location: str, quiet: Quiet
    ) -> None:
        super().__init__(build, seconds)
        self._quiet = quiet
        self._end_at_the_latest = self._end + 60
        self._factory, self._location = factory, location
        self._chance = random.Random()
        self._peace = False
        self._a_call_takes = 0.001
        #: How many calls were under way when the process was killed.
        self.cut_short = 0
        #: Started ahead, so that nobody has to wait for Python to start. Its store is not open.
        self._next = self.run(ChildProcess.start(factory, location))
        self.replace_the_process()

    @property
    def store(self) -> CheckpointStore:
        return self._store

    def is_over(self) -> bool:
        """Not before a kill has landed in a call. On a slow machine that may take its time, but not without end."""
        return super().is_over() and (self.cut_short > 0 or time.monotonic() > self._end_at_the_latest)

    def process(self) -> ProcessIdentity:
        return self._store.child.identity

    def wants_to_kill(self) -> bool:
        """Whether the process is to die in the next call. No more when time is up: each death takes a while."""
        return not self._peace and not self.is_over() and self._chance.random() < 0.3

    async def take_time(self, call: Coroutine[Any, Any, T]) -> T:
        """Make the call, and remember how long it took: within that time a kill lands in the middle of one."""
        began = time.monotonic()
        try:
            return await call
        finally:
            self._a_call_takes = time.monotonic() - began

    @contextlib.contextmanager
    def peace(self) -> Iterator[None]:
        """Nobody is killed for now."""
        self._peace = True
        try:
            yield
        finally:
            self._peace = False

    def replace_the_process(self) -> None:
        """A new process, with a store that is just opened."""

        async def replace() -> None:
            child, self._next = self._next, await ChildProcess.start(self._factory, self._location)
            self._store = StoreProcess(self._factory, self._location, child)
            await self._store.open()

        self.run(replace())

    def end_the_process(self) -> None:
        self.run(self._store.close())
        self.replace_the_process()

    def reopen_the_reader(self) -> None:
        self.run(self.reader.close())
        self.reader = self.build()
        self.run(self.reader.open())

    async def kill_during(self, call: Coroutine[Any, Any, T]) -> T:
        """Kill the process at some moment of the call. Gives what the call gave, if it came to that.

        Raises:
            ProcessGone: the call was cut short.
        """
        child = self._store.child
        making, begun = asyncio.ensure_future(call), asyncio.ensure_future(child.until_begun())
        await asyncio.wait([making, begun], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        await asyncio.sleep(self._chance.choice((0, self._a_call_takes * self._chance.random())))
        await child.kill()
        await self._quiet(self._location, child.identity)
        try:
            return await making
        except ProcessGone:
            self.cut_short += 1
            raise

    def close(self) -> None:
        async def kill_all() -> None:
            await self._store.child.kill()
            await self._next.kill()

        try:
            self.run(kill_all())
        finally:
            super().close()
