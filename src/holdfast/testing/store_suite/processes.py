"""Clauses about several processes on one durable store: races, death, a process that stood still."""

import asyncio
import contextlib
import os
import uuid
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.errors import ClaimLost, RunBusy
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.liveness import ProcessIdentity, this_process
from holdfast.checkpoint.record import Ending, RunFilter
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import StoreProcess
from holdfast.testing.store_suite.journal import watch_a_run_grow
from holdfast.testing.store_suite.reopening import DurableStoreUnderTest
from holdfast.testing.store_suite.signals import STIRS, wakes
from holdfast.testing.store_suite.subject import (
    a_run,
    a_write,
    begun,
    bodies_of,
    contents,
    ids,
    listed,
    record_of,
)

RACERS = 6


async def enlisted_as(store: CheckpointStore, process: ProcessIdentity) -> str:
    """A new worker of that process; its id."""
    worker = Worker(worker_id=f"worker-{uuid.uuid4().hex}", process=process)
    await store.enlist(worker)
    return worker.worker_id


@contextlib.asynccontextmanager
async def racers(factory: str, location: str) -> AsyncIterator[list[tuple[StoreProcess, str]]]:
    """Several processes with a store on the same place, opened at once, and a worker in each."""
    async with contextlib.AsyncExitStack() as stack:
        stores = [StoreProcess(factory, location) for _ in range(RACERS)]
        await asyncio.gather(*(stack.enter_async_context(store) for store in stores))
        yield [(store, await enlisted_as(store, store.child.identity)) for store in stores]


@pytest.mark.asyncio
class RaceClauses(DurableStoreUnderTest):
    async def test_of_many_processes_one_wins_each_claim(self, location: str) -> None:
        names = [f"run-{n}" for n in range(25)]
        async with racers(self.factory, location) as racing:
            for name in names:
                await racing[0][0].create(a_run(name))
            tries = [(store, name, worker) for name in names for store, worker in racing]
            results = await asyncio.gather(
                *(store.claim(name, worker) for store, name, worker in tries), return_exceptions=True
            )
            won = [result for result in results if isinstance(result, Claim)]
            lost = [result for result in results if not isinstance(result, Claim)]
            assert sorted(ids(won)) == sorted(names)
            assert {type(result) for result in lost} == {RunBusy}
            assert len({claim.token for claim in won}) == len(won)
            for claim in won:
                record = await record_of(racing[-1][0], claim.run_id)
                assert (record.owner, record.token, record.strikes) == (claim.worker_id, claim.token, 1)

    async def test_many_processes_take_every_run_once(self, location: str) -> None:
        names = [f"run-{n}" for n in range(60)]

        async def drain(store: CheckpointStore, worker: str) -> list[str]:
            taken: list[str] = []
            while claims := await store.claim_next(worker, agents=["agent"], limit=4):
                taken += ids(claims)
            return taken

        async with racers(self.factory, location) as racing:
            for n, name in enumerate(names):
                await racing[0][0].create(a_run(name, caller_id=f"caller-{n % 5}"))
            drained = await asyncio.gather(*(drain(store, worker) for store, worker in racing))
        assert Counter(run_id for taken in drained for run_id in taken) == Counter(names)

    async def test_of_many_processes_one_creates_an_id(self, location: str) -> None:
        async with racers(self.factory, location) as racing:
            results = await asyncio.gather(
                *(
                    store.create(a_run(f"run-{n}", worker.encode()), worker_id=worker)
                    for n in range(10)
                    for store, worker in racing
                ),
                return_exceptions=True,
            )
            won = [result for result in results if isinstance(result, Claim)]
            assert sorted(ids(won)) == sorted(f"run-{n}" for n in range(10))
            for claim in won:
                assert await bodies_of(racing[0][0], claim.run_id) == [claim.worker_id.encode()]

    async def test_processes_write_to_their_runs_at_once(self, location: str) -> None:
        async def drive(store: CheckpointStore, worker: str) -> Claim:
            claim = await begun(store, worker, a_run(f"run-of-{worker}"))
            for seq in range(1, 21):
                await store.append(claim, a_write(seq, f"{worker} {seq}".encode() * 50, finished_step=True))
            return claim

        async with racers(self.factory, location) as racing:
            claims = await asyncio.gather(*(drive(store, worker) for store, worker in racing))
            for claim in claims:
                expected = [b"begin", *(f"{claim.worker_id} {seq}".encode() * 50 for seq in range(1, 21))]
                assert await bodies_of(racing[0][0], claim.run_id) == expected

    async def test_what_is_loaded_while_another_process_writes_is_of_one_moment(
        self, store: CheckpointStore, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as other:
            await watch_a_run_grow(other, store, await enlisted_as(other, other.child.identity))

    async def test_a_change_wakes_who_waits_in_another_process(self, store: CheckpointStore, location: str) -> None:
        async with StoreProcess(self.factory, location) as other:
            worker = await enlisted_as(store, this_process())
            assert await wakes(other, store, worker, STIRS["submitted"], self.patience)


@pytest.mark.asyncio
class DeathClauses(DurableStoreUnderTest):
    async def test_a_killed_processs_runs_are_free_at_once(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as doomed, StoreProcess(self.factory, location) as alive:
            killed = await enlisted_as(doomed, doomed.child.identity)
            lives = await enlisted_as(alive, alive.child.identity)
            for n in range(3):
                await begun(doomed, killed, a_run(f"doomed-{n}"))
                await begun(alive, lives, a_run(f"alive-{n}"))
            assert await listed(store, RunFilter(interrupted=True)) == []
            await doomed.child.kill()
            names = [f"doomed-{n}" for n in range(3)]
            assert await listed(store, RunFilter(interrupted=True)) == names
            assert (await store.claim("doomed-0", worker)).strikes == 2
            assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == names[1:]
            for n in range(3):
                with pytest.raises(RunBusy):
                    await store.claim(f"alive-{n}", worker)
                with pytest.raises(RunBusy):
                    await store.remove(f"alive-{n}")
                assert (await record_of(store, f"alive-{n}")).owner_alive

    async def test_a_process_that_ended_well_leaves_its_runs_free(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as other:
            await begun(other, await enlisted_as(other, other.child.identity))
            await other.close()
            assert (await record_of(store)).interrupted
            assert (await store.claim("run-1", worker)).strikes == 2

    async def test_a_recycled_pid_is_not_taken_for_the_old_process(self, store: CheckpointStore, worker: str) -> None:
        this = this_process()
        assert this.pid == os.getpid()
        earlier = await enlisted_as(store, msgspec.structs.replace(this, started=f"{this.started}0"))
        await begun(store, earlier)
        record = await record_of(store)
        assert (record.owner, record.owner_alive, record.interrupted) == (earlier, False, True)
        assert (await store.claim("run-1", worker)).worker_id == worker

    async def test_a_worker_on_another_host_is_not_dead_because_it_cannot_be_seen(
        self, store: CheckpointStore, worker: str
    ) -> None:
        elsewhere = await enlisted_as(store, ProcessIdentity(host="elsewhere", pid=1, started="then"))
        await begun(store, elsewhere)
        assert (await record_of(store)).owner_alive
        with pytest.raises(RunBusy):
            await store.claim("run-1", worker)
        assert ids(await store.claim_next(worker, agents=["agent"], limit=1)) == []

    async def test_a_process_that_stood_still_writes_nothing_after_its_run_was_taken(
        self, store: CheckpointStore, worker: str, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as frozen:
            old = await begun(frozen, await enlisted_as(frozen, frozen.child.identity))
            await frozen.append(old, a_write(1, b"before"))
            await frozen.child.stop()
            with pytest.raises(RunBusy):
                await store.claim("run-1", worker)  # a process that stands still is not dead
            late = [
                asyncio.ensure_future(call)
                for call in (
                    frozen.append(old, a_write(2, b"late", progress=b"late")),
                    frozen.append(old, a_write(2, b"late", replace=True)),
                    frozen.settle(old, Ending(status=Status.DONE)),
                    frozen.remove("run-1", claim=old),
                )
            ]
            new = await store.claim("run-1", worker, steal=True)
            await store.append(new, a_write(2, b"by the new owner"))
            before = await contents(store)
            frozen.child.cont()
            results = await asyncio.gather(*late, return_exceptions=True)
            assert [type(result) for result in results] == [ClaimLost] * len(late)
            assert await contents(store) == before
            await store.append(new, a_write(3, b"goes on"))
            assert await bodies_of(frozen) == [b"begin", b"before", b"by the new owner", b"goes on"]
