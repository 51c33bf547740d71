"""Where random sequences of calls take place: a store to call, a store to look at, and processes that may die."""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.checkpoint.claim import ProcessIdentity, WorkerIdentity, this_process
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import ChildProcess, ProcessExited, StoreProcess

T = TypeVar("T")
WaitUntilIdle = Callable[[str, ProcessIdentity], Awaitable[None]]


class Environment:
    """One store in this process, called and looked at."""

    def __init__(self, build: Callable[[], CheckpointStore], seconds: float) -> None:
        self.build = build
        self.runner = asyncio.Runner()
        self._stop_at = time.monotonic() + seconds
        self.reader = self.build()
        self.run(self.reader.open())

    @property
    def store(self) -> CheckpointStore:
        """The store that is called."""
        return self.reader

    def is_time_up(self) -> bool:
        """Whether it is time to stop."""
        return time.monotonic() > self._stop_at

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def make_worker(self) -> WorkerIdentity:
        """A new worker in the process of the store that is called."""
        return WorkerIdentity(worker_id=f"worker-{uuid.uuid4().hex}", process=self.get_process())

    def get_process(self) -> ProcessIdentity:
        return this_process()

    def close(self) -> None:
        try:
            self.run(self.reader.close())
        finally:
            self.runner.close()


class CrashingEnvironment(Environment):
    """The store that is called is in a child process, which can be killed in the middle of a call."""

    def __init__(
        self,
        build: Callable[[], CheckpointStore],
        seconds: float,
        *,
        factory: str,
        location: str,
        wait_until_idle: WaitUntilIdle,
    ) -> None:
        super().__init__(build, seconds)
        self._wait_until_idle = wait_until_idle
        self._deadline = self._stop_at + 60
        self._factory, self._location = factory, location
        self._rng = random.Random()
        self._kills_paused = False
        self._call_duration = 0.001
        #: How many calls were under way when the process was killed.
        self.interrupted_calls = 0
        #: Started ahead, so that nobody has to wait for Python to start. Its store is not open.
        self._spare_child = self.run(ChildProcess.start(factory, location))
        self.replace_process()

    @property
    def store(self) -> CheckpointStore:
        return self._store

    def is_time_up(self) -> bool:
        """Not before a kill has landed in a call. On a slow machine that may take its time, but not without end."""
        return super().is_time_up() and (self.interrupted_calls > 0 or time.monotonic() > self._deadline)

    def get_process(self) -> ProcessIdentity:
        return self._store.child.identity

    def should_kill(self) -> bool:
        """Whether the process is to die in the next call. No more when time is up: each death takes a while."""
        return not self._kills_paused and not self.is_time_up() and self._rng.random() < 0.3

    async def time_call(self, call: Coroutine[Any, Any, T]) -> T:
        """Make the call, and remember how long it took: within that time a kill lands in the middle of one."""
        began = time.monotonic()
        try:
            return await call
        finally:
            self._call_duration = time.monotonic() - began

    @contextlib.contextmanager
    def pause_kills(self) -> Iterator[None]:
        """Nobody is killed for now."""
        self._kills_paused = True
        try:
            yield
        finally:
            self._kills_paused = False

    def replace_process(self) -> None:
        """A new process, with a store that is just opened."""

        async def replace() -> None:
            child, self._spare_child = self._spare_child, await ChildProcess.start(self._factory, self._location)
            self._store = StoreProcess(self._factory, self._location, child)
            await self._store.open()

        self.run(replace())

    def restart_process(self) -> None:
        self.run(self._store.close())
        self.replace_process()

    def reopen_reader(self) -> None:
        self.run(self.reader.close())
        self.reader = self.build()
        self.run(self.reader.open())

    async def kill_during(self, call: Coroutine[Any, Any, T]) -> T:
        """Kill the process at some moment of the call. Gives what the call gave, if it came to that.

        Raises:
            ProcessExited: the call was cut short.
        """
        child = self._store.child
        making, begun = asyncio.ensure_future(call), asyncio.ensure_future(child.wait_until_call_started())
        await asyncio.wait([making, begun], return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        await asyncio.sleep(self._rng.choice((0, self._call_duration * self._rng.random())))
        await child.kill()
        await self._wait_until_idle(self._location, child.identity)
        try:
            return await making
        except ProcessExited:
            self.interrupted_calls += 1
            raise

    def close(self) -> None:
        async def kill_all() -> None:
            await self._store.child.kill()
            await self._spare_child.kill()

        try:
            self.run(kill_all())
        finally:
            super().close()
