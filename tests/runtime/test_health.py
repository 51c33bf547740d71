"""Whether an App can take runs, for probes; and a worker that takes a number of runs."""

import asyncio
from typing import Any

from holdfast import Agent, App, Reply, WorkerSettings
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.record import Pending, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.runtime.status_server import STORE_TIMEOUT
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock


async def model(messages: Any, tools: Any) -> Reply:
    return Reply(text="done")


AGENT = Agent(name="a", model=model)


class UnreliableStore(MemoryStore):
    """Fails or hangs when a test says so."""

    error: Exception | None = None
    blocked: asyncio.Event | None = None
    asked = 0

    async def pending(self, worker_id: str) -> Pending:
        self.asked += 1
        if self.error is not None:
            raise self.error
        if self.blocked is not None:
            await self.blocked.wait()
        return await super().pending(worker_id)


async def test_a_store_that_fails_is_a_problem_until_it_answers_again() -> None:
    store = UnreliableStore()
    async with App([AGENT], store) as app:
        assert await app.find_problem() == ""
        for error in (StoreUnavailable("it is away"), RuntimeError("a bug")):
            store.error = error
            assert str(error) in await app.find_problem()
        store.error = None
        assert await app.find_problem() == ""


async def test_a_store_that_hangs_is_a_problem_and_is_asked_once() -> None:
    clock = ManualClock()
    store = UnreliableStore(clock=clock)
    async with App([AGENT], store, worker=False, clock=clock) as app:
        app._working.worker.start()
        assert await app.find_problem() == ""
        store.blocked, before = asyncio.Event(), store.asked
        for _ in range(3):
            probe = asyncio.create_task(app.find_problem())
            await clock.advance(STORE_TIMEOUT / 2)
            assert not probe.done()
            await clock.advance(STORE_TIMEOUT / 2)
            assert await probe == "the store has not answered within 2 seconds"
        assert store.asked >= before + 1
        store.blocked.set()
        assert await app.find_problem() == ""


async def test_an_app_that_does_not_work_or_drains_takes_no_runs() -> None:
    async with App([AGENT], MemoryStore(), worker=False) as app:
        assert "takes no more runs" in await app.find_problem()
    async with App([AGENT], MemoryStore()) as app:
        await app.shutdown()
        assert "takes no more runs" in await app.find_problem()


async def test_serve_returns_when_the_worker_has_taken_its_runs_and_they_have_ended() -> None:
    store = MemoryStore()
    async with App([AGENT], store, worker=WorkerSettings(take_runs=False, max_runs=2, concurrency=3)) as app:
        for number in range(3):
            await app.submit(AGENT, "go", run_id=f"r{number}")
        await app.serve()
        await app.serve()
        assert "takes no more runs" in await app.find_problem()
        records = [record async for record in iter_runs(store)]
    assert sorted(record.status for record in records) == [RunStatus.DONE, RunStatus.DONE, RunStatus.QUEUED]
