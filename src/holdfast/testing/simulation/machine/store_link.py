"""The connection of a simulated process to a store in memory that all processes share."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.checkpoint.errors import StoreClosed, StoreUnavailable
from holdfast.checkpoint.workers import WorkerIdentity
from holdfast.core.ports import Transactions
from holdfast.db.tables import Tables
from holdfast.stores.memory import MemoryStore
from holdfast.testing.simulation.machine.process import SimulatedProcess
from holdfast.testing.simulation.machine.scheduler import Scheduler


class Weather:
    """How a store behaves at the moment."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        #: Seconds that a request and its answer may take. Zero: none.
        self.slowness = 0.0
        #: Probability that a request is lost. What a request without an answer has changed is for its store to know.
        self.failing = 0.0
        #: Probabilities that a change is not announced, and that an announcement is made without a change.
        self.lost_notices = 0.0
        self.false_notices = 0.0

    def happens(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def draw_delay(self) -> float:
        return self._random.random() ** 3 * self.slowness if self.slowness and self._random.random() < 0.5 else 0.0


class SharedMemory:
    """A store in memory that outlives simulated processes, and tells their links of changes."""

    def __init__(self, scheduler: Scheduler, store: MemoryStore, weather: Weather, lease: float) -> None:
        self.store, self.weather, self.lease, self.scheduler = store, weather, lease, scheduler
        self.links: list[StoreLink] = []

    def announce(self) -> None:
        for link in self.links:
            if not self.weather.happens(self.weather.lost_notices):
                link.on_change()

    def deregister(self, worker: WorkerIdentity) -> None:
        """The lease of a worker has ended, or its process is known to be dead."""
        finish(self.store.deregister_worker(worker.worker_id))


class StoreLink:
    """A `RunStore`. Its process may die before a request was sent, after it was executed, or before the answer."""

    durable = True
    transactions: Transactions = "none"

    def __init__(self, shared: SharedMemory, process: SimulatedProcess) -> None:
        self._shared, self._process = shared, process
        self._is_open = False
        self._has_news = False
        self._waiting: list[asyncio.Future[None]] = []
        self._workers: dict[str, WorkerIdentity] = {}
        process.on_death.append(self._on_death)

    async def open(self) -> None:
        await self._delay()
        self._is_open = True
        if self not in self._shared.links:
            self._shared.links.append(self)

    async def close(self) -> None:
        self._is_open = False
        self.on_change()

    def tables(self) -> Tables:
        return self._shared.store.tables()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._shared.store, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._call(name, method, args, kwargs)

        return call

    async def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._check_open()
        weather = self._shared.weather
        await self._delay()
        if weather.happens(weather.failing):
            raise StoreUnavailable("simulated: the request was lost")
        self._process.check_alive()
        result = await method(*args, **kwargs)
        if name == "register_worker":
            self._workers[args[0].worker_id] = args[0]
        elif name == "deregister_worker":
            self._workers.pop(args[0], None)
        await self._delay()
        return result

    async def wait_for_change(self, timeout: timedelta) -> bool:
        self._check_open()
        weather = self._shared.weather
        if weather.happens(weather.false_notices):
            return True
        if not self._has_news:
            change = asyncio.get_running_loop().create_future()
            self._waiting.append(change)
            try:
                await asyncio.wait([change], timeout=timeout.total_seconds())
            finally:
                self._waiting.remove(change)
        changed, self._has_news = self._has_news, False
        return changed

    def on_change(self) -> None:
        self._has_news = True
        for change in self._waiting:
            if not change.done():
                change.set_result(None)

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed("this link is closed")

    async def _delay(self) -> None:
        self._process.check_alive()
        await asyncio.sleep(self._shared.weather.draw_delay())

    def _on_death(self, process: SimulatedProcess) -> None:
        if self in self._shared.links:
            self._shared.links.remove(self)
        shared = self._shared
        for worker in self._workers.values():
            shared.scheduler.call_at(shared.scheduler.now, partial(shared.deregister, worker), None)

    def on_freeze(self) -> None:
        """The lease of the workers ends unless the process is thawed before."""
        shared, process = self._shared, self._process

        def end_lease() -> None:
            if process.is_frozen:
                for worker in self._workers.values():
                    shared.deregister(worker)

        shared.scheduler.call_at(shared.scheduler.now + shared.lease, end_lease, None)

    def on_thaw(self) -> None:
        for worker in self._workers.values():
            finish(self._shared.store.register_worker(worker))


def finish(work: Any) -> Any:
    """Run a coroutine that never waits, and return its result."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")
