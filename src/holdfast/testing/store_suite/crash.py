"""Clauses about SIGKILL in the middle of a write."""

import asyncio
import os
import random
import time
from dataclasses import dataclass, field

import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_process import ProcessGone, StoreProcess
from holdfast.testing.store_suite.processes import enlisted_as
from holdfast.testing.store_suite.reopening import DurableStoreUnderTest
from holdfast.testing.store_suite.subject import a_run, entries

#: Set to anything, this makes the parts of the suite that live by chance run ten times as long.
THOROUGH = 10 if os.environ.get("HOLDFAST_TEST_THOROUGH") else 1

WRITERS = 4
KILLS = 5 * THOROUGH


@dataclass
class _Writer:
    """One run, what was acknowledged of it, and the write that nobody knows the end of."""

    run_id: str
    number: int = 0
    journal: list[Entry] = field(default_factory=lambda: list(a_run().entries))
    next_seq: int = 1
    progress: bytes = b"progress"
    unsure: Write | None = None

    def next_write(self) -> Write:
        """Several entries of different sizes; every fifth write is a rewrite."""
        self.number += 1
        sizes = random.sample((10, 300, 4_000, 70_000), k=3)
        bodies = (f"{self.run_id} {self.number} {size} ".encode() + os.urandom(size) for size in sizes)
        return Write(
            entries=entries(self.next_seq, *bodies),
            progress=b"%d" % self.number,
            replace=self.number % 5 == 0,
            finished_step=True,
        )

    def take(self, write: Write) -> None:
        self.journal = [*([] if write.replace else self.journal), *write.entries]
        self.next_seq += len(write.entries)
        self.progress = write.progress

    async def write_until_killed(self, store: CheckpointStore, claim: Claim, done: asyncio.Queue[None]) -> None:
        while True:
            self.unsure = self.next_write()
            try:
                await store.append(claim, self.unsure)
            except ProcessGone:
                return
            self.take(self.unsure)
            self.unsure = None
            done.put_nowait(None)

    async def check(self, store: CheckpointStore) -> None:
        """Everything acknowledged is there, and of the write that was cut short all or nothing."""
        stored = await store.load(self.run_id)
        found = (list(stored.entries), stored.record.next_seq, stored.record.progress)
        if self.unsure is not None and stored.record.next_seq != self.next_seq:
            self.take(self.unsure)
        self.unsure = None
        assert found == (self.journal, self.next_seq, self.progress)


@pytest.mark.asyncio
class CrashClauses(DurableStoreUnderTest):
    async def test_a_kill_in_mid_write_loses_nothing_acknowledged_and_leaves_nothing_half_written(
        self, store: CheckpointStore, location: str
    ) -> None:
        writers = [_Writer(f"run-{n}") for n in range(WRITERS)]
        for writer in writers:
            await store.create(a_run(writer.run_id))
        landed = 0
        for _ in range(10 * KILLS):
            async with StoreProcess(self.factory, location) as child:
                await _kill_while_writing(child, writers)
                # Between two writes nothing can be half written: such a kill does not count.
                landed += "append" in child.child.cut_short
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


async def _kill_while_writing(child: StoreProcess, writers: list[_Writer]) -> None:
    """Let the process make some writes, and kill it at a random moment of a later one."""
    worker = await enlisted_as(child, child.child.identity)
    claims = [await child.claim(writer.run_id, worker) for writer in writers]
    done: asyncio.Queue[None] = asyncio.Queue()
    writing = [
        asyncio.ensure_future(writer.write_until_killed(child, claim, done))
        for writer, claim in zip(writers, claims, strict=True)
    ]
    started, before_the_kill = time.perf_counter(), random.randint(5, 25)
    for _ in range(before_the_kill):
        await done.get()
    a_write_takes = (time.perf_counter() - started) / before_the_kill * WRITERS
    await child.child.until_begun()
    await asyncio.sleep(random.uniform(0, a_write_takes))
    await child.child.kill()
    await asyncio.gather(*writing)
