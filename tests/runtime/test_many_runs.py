"""Thousands of runs: recovery holds a few of them at a time, and an idle process costs the same for any number.

How long that takes is measured by `bench/parts/recovery.py`; here it is counted.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from tests.probe_store import ProbeStore
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Reply, WorkerSettings
from holdfast.checkpoint.record import Release, RunStatus, StoredRun
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.core import Message, ToolSchema
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.janitor import PURGE_INTERVAL, Janitor
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.manual_clock import ManualClock


class HoldingStore(ProbeStore):
    """Counts the runs that are loaded and not settled yet."""

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self.held: set[str] = set()
        self.most = 0
        self.ended: set[str] = set()
        self.enough = asyncio.Event()

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        self.held.add(run_id)
        self.most = max(self.most, len(self.held))
        return await super().load(run_id, after=after)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        self.held.discard(claim.run_id)
        if release.status is RunStatus.DONE:
            self.ended.add(claim.run_id)
        if len(self.ended) >= 300:
            self.enough.set()


async def answers(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    return Reply(text="done")


async def test_of_ten_thousand_interrupted_runs_recovery_holds_no_more_than_its_concurrency(tmp_path: Path) -> None:
    agent = Agent(name="agent", model=answers)
    path = tmp_path / "runs.db"
    async with App([agent], SqliteStore(path, durability="process"), worker=False) as app:
        for thousand in range(10):
            ids = [f"r{thousand}-{number}" for number in range(1000)]
            await asyncio.gather(*(app.submit(agent, "go", run_id=run_id) for run_id in ids))
    inner = SqliteStore(path, durability="process")
    store = HoldingStore(inner)
    async with App([agent], store, worker=WorkerSettings(concurrency=8, shutdown_timeout=timedelta(0))):
        await store.enough.wait()
    # It uses the room it has, and no more; and it has looked into those runs alone that it took.
    assert store.most == 8
    assert store.calls.count("load") <= len(store.ended) + 8
    left = [record async for record in iter_runs(inner)]
    assert len(left) == 10_000
    assert sum(record.is_interrupted for record in left) == 10_000 - len(store.ended)
    await inner.close()


async def test_what_an_idle_process_asks_its_store_does_not_depend_on_how_many_runs_it_executes(tmp_path: Path) -> None:
    looks = 50
    asked: dict[int, Counter[str]] = {}
    for runs in (1, 1000):
        clock = ManualClock()
        life = SimulatedHost(SqliteStore(tmp_path / f"{runs}.db", durability="process"), clock=clock)
        house = Janitor(life.checkpoints, life.executor, ChangeSignal(life.store, clock), clock=clock)
        waiting = asyncio.Semaphore(0)

        async def ponders(
            messages: Sequence[Message], tools: Sequence[ToolSchema], waiting: asyncio.Semaphore = waiting
        ) -> Reply:
            waiting.release()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        agent = Agent(name="agent", model=ponders)
        driving = [
            asyncio.create_task(life.executor.run(agent, "go", run_id=f"r{number}", on_cancel="cancel"))
            for number in range(runs)
        ]
        for _ in range(runs):
            await waiting.acquire()
        assert len(life.executor.active_run_ids) == runs
        before = len(life.store.calls)
        for _ in range(looks):
            await house.tick()
            await clock.advance(PURGE_INTERVAL / 10)
        asked[runs] = Counter(life.store.calls[before:])
        for task in driving:
            task.cancel()
        await asyncio.gather(*driving, return_exceptions=True)
        await life.inner.close()
    assert asked[1] == asked[1000]
    assert asked[1000]["pending"] == looks
    assert asked[1000]["purge"] == looks / 10
