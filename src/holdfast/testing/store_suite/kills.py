"""Clauses about SIGKILL in the middle of a call."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import ProcessExited, StoreProcess
from holdfast.testing.store_suite.durability import DurableStoreUnderTest
from holdfast.testing.store_suite.processes import add_process_worker
from holdfast.testing.store_suite.store_under_test import (
    create_claimed,
    load_contents,
    make_append,
    make_entries,
    make_run,
)

#: Set to anything, this makes the parts of the suite that live by chance run ten times as long.
THOROUGH = 10 if os.environ.get("HOLDFAST_TEST_THOROUGH") else 1

WRITERS = 4
KILLS = 5 * THOROUGH
#: Of each kind of call.
KILLS_PER_CALL = 2 * THOROUGH


@dataclass
class _Writer:
    """One run, what was acknowledged of it, and the write that nobody knows the end of."""

    run_id: str
    number: int = 0
    journal: list[Entry] = field(default_factory=lambda: list(make_run().entries))
    next_seq: int = 1
    progress: bytes = b"progress"
    unacknowledged: Append | None = None

    def next_write(self) -> Append:
        """Several entries of different sizes; every fifth write is a rewrite."""
        self.number += 1
        sizes = random.sample((10, 300, 4_000, 70_000), k=3)
        bodies = (f"{self.run_id} {self.number} {size} ".encode() + os.urandom(size) for size in sizes)
        return Append(
            entries=make_entries(self.next_seq, *bodies),
            progress=b"%d" % self.number,
            rewrite=self.number % 5 == 0,
            step_finished=True,
        )

    def apply(self, write: Append) -> None:
        self.journal = [*([] if write.rewrite else self.journal), *write.entries]
        self.next_seq += len(write.entries)
        self.progress = write.progress

    async def write_until_killed(self, store: CheckpointStore, claim: Claim, done: asyncio.Queue[None]) -> None:
        while True:
            self.unacknowledged = self.next_write()
            try:
                await store.append(claim, self.unacknowledged)
            except ProcessExited:
                return
            self.apply(self.unacknowledged)
            self.unacknowledged = None
            done.put_nowait(None)

    async def check(self, store: CheckpointStore) -> None:
        """Everything acknowledged is there, and of the write that was cut short all or nothing."""
        stored = await store.load(self.run_id)
        found = (list(stored.entries), stored.record.next_seq, stored.record.progress)
        if self.unacknowledged is not None and stored.record.next_seq != self.next_seq:
            self.apply(self.unacknowledged)
        self.unacknowledged = None
        assert found == (self.journal, self.next_seq, self.progress)


class KilledCall(NamedTuple):
    """A call to be cut short."""

    #: Bring a run of this name to where the call is made.
    prepare: Callable[[StoreProcess, str], Awaitable[Claim]]
    make: Callable[[StoreProcess, Claim], Coroutine[Any, Any, None]]


async def _prepare_nothing(child: StoreProcess, run_id: str) -> Claim:
    worker = await add_process_worker(child, child.child.identity)
    return Claim(run_id=run_id, worker_id=worker, token=0, strikes=0)


async def _prepare_running(child: StoreProcess, run_id: str) -> Claim:
    worker = await add_process_worker(child, child.child.identity)
    return await create_claimed(child, worker, make_run(run_id, b"zero", b"one"))


async def _prepare_queued(child: StoreProcess, run_id: str) -> Claim:
    claim = await _prepare_nothing(child, run_id)
    await child.create(make_run(run_id, b"zero", b"one"))
    return claim


async def _create(child: StoreProcess, claim: Claim) -> None:
    await child.create(make_run(claim.run_id, *_BODIES), worker_id=claim.worker_id)


async def _append(child: StoreProcess, claim: Claim) -> None:
    await child.append(claim, make_append(2, *_BODIES, progress=b"further", step_finished=True))


async def _rewrite(child: StoreProcess, claim: Claim) -> None:
    await child.append(claim, make_append(2, *_BODIES, progress=b"further", rewrite=True))


async def _release(child: StoreProcess, claim: Claim) -> None:
    last = make_entries(2, *_BODIES)
    await child.release(claim, Release(status=RunStatus.DONE, reason="because", entries=last, progress=b"the end"))


async def _claim(child: StoreProcess, claim: Claim) -> None:
    await child.claim(claim.run_id, claim.worker_id)


async def _remove(child: StoreProcess, claim: Claim) -> None:
    await child.remove(claim.run_id, claim=claim)


_BODIES = (b"x" * 20, b"y" * 5_000, b"z" * 70_000)

CALLS = {
    "create": KilledCall(_prepare_nothing, _create),
    "append": KilledCall(_prepare_running, _append),
    "rewrite": KilledCall(_prepare_running, _rewrite),
    "release": KilledCall(_prepare_running, _release),
    "claim": KilledCall(_prepare_queued, _claim),
    "remove": KilledCall(_prepare_running, _remove),
}


@pytest.mark.asyncio
class KillTests(DurableStoreUnderTest):
    async def test_a_kill_in_mid_write_loses_nothing_acknowledged_and_leaves_nothing_half_written(
        self, store: CheckpointStore, location: str
    ) -> None:
        writers = [_Writer(f"run-{n}") for n in range(WRITERS)]
        for writer in writers:
            await store.create(make_run(writer.run_id))
        landed = 0
        for _ in range(10 * KILLS):
            async with StoreProcess(self.factory, location) as child:
                await _kill_while_writing(child, writers)
                # Between two writes nothing can be half written: such a kill does not count.
                landed += "append" in child.child.interrupted_calls
            await self.wait_until_idle(location, child.child.identity)
            for writer in writers:
                await writer.check(store)
            if landed == KILLS:
                break
        assert landed == KILLS, "the kills have to land while a write is under way"
        again = self.build(location)
        await again.open()
        try:
            for writer in writers:
                await writer.check(again)
        finally:
            await again.close()

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_kill_in_the_middle_of_a_call_leaves_all_of_it_or_nothing(
        self, store: CheckpointStore, location: str, call: KilledCall
    ) -> None:
        landed = 0
        for n in range(20 * KILLS_PER_CALL):
            async with StoreProcess(self.factory, location) as child:
                run, twin = f"run-{n}", f"twin-{n}"
                claims = {name: await call.prepare(child, name) for name in (run, twin)}
                before, began = await _read_state(store, run), time.perf_counter()
                await call.make(child, claims[twin])
                takes, after = time.perf_counter() - began, await _read_state(store, twin)
                assert before != after, "the twin shows what the call does when nobody is killed"
                await _kill_during(child, call.make(child, claims[run]), random.choice((0, takes * random.random())))
                landed += bool(child.child.interrupted_calls)
            await self.wait_until_idle(location, child.child.identity)
            assert await _read_state(store, run) in (before, after)
            if landed == KILLS_PER_CALL:
                break
        assert landed == KILLS_PER_CALL, "the kills have to land while the call is under way"


async def _kill_while_writing(child: StoreProcess, writers: list[_Writer]) -> None:
    """Let the process make some writes, and kill it at a random moment of a later one."""
    worker = await add_process_worker(child, child.child.identity)
    claims = [await child.claim(writer.run_id, worker) for writer in writers]
    done: asyncio.Queue[None] = asyncio.Queue()
    writing = [
        asyncio.ensure_future(writer.write_until_killed(child, claim, done))
        for writer, claim in zip(writers, claims, strict=True)
    ]
    waiting = asyncio.ensure_future(_wait_for_random_write_moment(child, done))
    # A writer ends first only if something is wrong with the store.
    await asyncio.wait([waiting, *writing], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await child.child.kill()
    await asyncio.gather(*writing)


async def _kill_during(child: StoreProcess, call: Coroutine[Any, Any, None], after: float) -> None:
    making = asyncio.ensure_future(call)
    begun = asyncio.ensure_future(child.child.wait_until_call_started())
    await asyncio.wait([making, begun], return_when=asyncio.FIRST_COMPLETED)
    begun.cancel()
    await asyncio.sleep(after)
    await child.child.kill()
    with contextlib.suppress(ProcessExited):
        await making


async def _read_state(store: CheckpointStore, run_id: str) -> tuple[object, ...] | None:
    """What a call changes of a run, without what is different for each run anyway."""
    try:
        record, journal = await load_contents(store, run_id)
    except RunNotFound:
        return None
    claimed = (record.status, record.strikes, record.reason, record.cancel_requested, record.token > 0)
    return *claimed, record.progress, record.next_seq, record.size, *journal


async def _wait_for_random_write_moment(child: StoreProcess, done: asyncio.Queue[None]) -> None:
    started, writes = time.perf_counter(), random.randint(5, 25)
    for _ in range(writes):
        await done.get()
    a_write_takes = (time.perf_counter() - started) / writes * WRITERS
    await child.child.wait_until_call_started()
    await asyncio.sleep(random.uniform(0, a_write_takes))
