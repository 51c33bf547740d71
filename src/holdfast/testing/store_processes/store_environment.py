"""The environment of random call sequences: a store to call, a store to read, and processes that may be killed."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import ProcessIdentity, WorkerIdentity, this_process
from holdfast.clock import SYSTEM_CLOCK
from holdfast.ids import make_id
from holdfast.testing.store_processes.store_process import ChildProcess, ProcessExited, StoreProcess

T = TypeVar("T")
WaitUntilIdle = Callable[[str, ProcessIdentity], Awaitable[None]]


#: A store that opens slowly, as behind a transaction pooler, has few kills a minute, and only some come within a call.
_EXTRA_TIME_S = 300


class Environment:
    """One store in this process, which is both called and read."""

    def __init__(self, build: Callable[[], RunStore], seconds: float) -> None:
        self.build = build
        self.runner = asyncio.Runner()
        self._stop_at = SYSTEM_CLOCK.monotonic() + seconds
        self.reader = self.build()
        self.run(self.reader.open())

    @property
    def store(self) -> RunStore:
        """The store to call."""
        return self.reader

    def is_time_up(self) -> bool:
        """Return whether the time for sequences has passed."""
        return SYSTEM_CLOCK.monotonic() > self._stop_at

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def make_worker(self) -> WorkerIdentity:
        """Return a new worker in the process of the called store."""
        return WorkerIdentity(worker_id=f"worker-{make_id()}", process=self.get_process())

    def get_process(self) -> ProcessIdentity:
        return this_process()

    def close(self) -> None:
        try:
            self.run(self.reader.close())
        finally:
            self.runner.close()


class CrashingEnvironment(Environment):
    """The called store is in a child process, which can be killed in the middle of a call."""

    def __init__(
        self,
        build: Callable[[], RunStore],
        seconds: float,
        *,
        factory: str,
        location: str,
        wait_until_idle: WaitUntilIdle,
    ) -> None:
        super().__init__(build, seconds)
        self._wait_until_idle = wait_until_idle
        self._deadline = self._stop_at + _EXTRA_TIME_S
        self._factory, self._location = factory, location
        self._rng = random.Random()
        self._kills_paused = False
        self._call_duration = 0.001
        #: The number of calls that a kill has interrupted.
        self.interrupted_calls = 0
        #: Started in advance, because Python starts slowly. Its store is not open.
        self._spare_child = self.run(ChildProcess.start(factory, location))
        self.replace_process()

    @property
    def store(self) -> RunStore:
        return self._store

    def is_time_up(self) -> bool:
        """Return whether the time has passed and a kill has interrupted a call, or some more minutes have passed."""
        return super().is_time_up() and (self.interrupted_calls > 0 or SYSTEM_CLOCK.monotonic() > self._deadline)

    def get_process(self) -> ProcessIdentity:
        return self._store.child.identity

    def should_kill(self) -> bool:
        """Decide whether to kill the process in the next call. A kill is slow, so not after the time has passed."""
        return not self._kills_paused and not self.is_time_up() and self._rng.random() < 0.3

    async def time_call(self, call: Coroutine[Any, Any, T]) -> T:
        """Make the call and measure its duration, within which a kill has to come."""
        began = SYSTEM_CLOCK.monotonic()
        try:
            return await call
        finally:
            self._call_duration = SYSTEM_CLOCK.monotonic() - began

    @contextlib.contextmanager
    def pause_kills(self) -> Iterator[None]:
        self._kills_paused = True
        try:
            yield
        finally:
            self._kills_paused = False

    def replace_process(self) -> None:
        """Switch to a new process and open its store."""

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
        """Kill the process at a random moment of the call. Return the result if the call had finished.

        Raises:
            ProcessExited: the kill interrupted the call.
        """
        child = self._store.child
        call_task, started = asyncio.ensure_future(call), asyncio.ensure_future(child.wait_until_call_started())
        await asyncio.wait([call_task, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        await asyncio.sleep(self._rng.choice((0, self._call_duration * self._rng.random())))
        await child.kill()
        await self._wait_until_idle(self._location, child.identity)
        try:
            return await call_task
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
