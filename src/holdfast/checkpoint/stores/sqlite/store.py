"""Runs in one SQLite file: the default store."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from os import PathLike
from pathlib import Path

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.errors import StoreClosed, StoreError
from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.stores.sqlite import claims, runs, workers
from holdfast.checkpoint.stores.sqlite.database import Database, Durability
from holdfast.checkpoint.stores.sqlite.pulse import Pulse
from holdfast.checkpoint.stores.sqlite.reader import Reader
from holdfast.checkpoint.stores.sqlite.signs import Signs
from holdfast.checkpoint.stores.sqlite.writer import Writer
from holdfast.clock import SYSTEM_CLOCK, Clock


class SqliteStore:
    """Keeps runs in one file, for any number of processes on one host.

    One thread writes: whatever waits is one transaction, and each caller goes on when its own part is on the disk.
    Reads have connections of their own; they neither wait for writes nor hold them up. The event loop is not blocked
    by either, but for a lone run whose writes follow one another closely on a quick disk (see `Writer`).
    """

    durable = True

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        durability: Durability = "full",
        dead_after: timedelta = timedelta(seconds=30),
        patience: timedelta = timedelta(seconds=10),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Nothing is touched before `open`.

        Args:
            path: the file. It and its folder are created if they are not there.
            durability: `full`: what was acknowledged survives a power cut. `process`: only the end of the process.
            dead_after: a worker whose process cannot be seen from here (another host, another container) is dead
                when its last heartbeat is so old. Of a process on this host it is known at once.
            patience: how long a write waits for a lock of another process before it fails with `StoreUnavailable`.
        """
        self._path = Path(path)
        self._clock = clock
        self._dead_after = dead_after
        self._database = Database(self._path, durability=durability, patience=patience)
        self._turns = claims.Turns(dead_after)
        self._open = False
        self._closing: asyncio.Task[None] | None = None

    # -- open and closed ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._open:
            return
        loop = asyncio.get_running_loop()
        self._signs = Signs(loop, self._clock)
        self._writer = Writer(self._database, self._clock, self._signs.signal)
        self._signs.begin(await self._writer.start(loop))
        self._reader = Reader(self._database, self._clock, self._dead_after)
        self._pulse = Pulse(
            self._database, self._clock, self._dead_after, self._signs.signal, writes=self._writer.writes
        )
        self._open = True

    async def close(self) -> None:
        if self._open:
            self._open = False
            self._closing = asyncio.ensure_future(self._close())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._signs.wake()
        self._pulse.stop()
        await self._reader.close()
        await self._writer.stop()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreClosed(f"{self._path} is not open: call open() first, and nothing after close()")

    # -- workers ------------------------------------------------------------------------------------------------------

    async def enlist(self, worker: Worker) -> None:
        self._check_open()
        await self._writer.do(None, workers.enlist, worker, self._dead_after)
        self._pulse.add(worker)

    async def discharge(self, worker_id: str) -> None:
        self._check_open()
        worker = self._pulse.drop(worker_id)
        try:
            await self._writer.do(None, workers.discharge, worker_id)
        except StoreError:
            if worker is not None:
                self._pulse.add(worker)
            raise

    # -- one run ------------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        self._check_open()
        return await self._writer.do(run.run_id, runs.create, run, worker_id)

    async def append(self, claim: Claim, write: Write) -> None:
        self._check_open()
        await self._writer.do(claim.run_id, runs.append, claim, write)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        self._check_open()
        return await self._reader.load(run_id, after)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        self._check_open()
        await self._writer.do(claim.run_id, runs.settle, claim, ending)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        self._check_open()
        await self._writer.do(run_id, runs.remove, run_id, claim, self._dead_after)

    # -- finding and claiming -----------------------------------------------------------------------------------------

    async def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        self._check_open()
        async for record in self._reader.records(wanted or RunFilter()):
            yield record

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        self._check_open()
        return await self._writer.do(
            run_id, claims.claim, run_id, worker_id, frozenset(statuses), steal, self._dead_after
        )

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        wanted, looked = frozenset(agents), None
        while True:
            # One transaction for each look: however many callers wait for something else, writes do not wait for that.
            taken, looked = await self._writer.do(None, self._turns.claim_next, worker_id, wanted, limit, looked)
            if taken or looked is None:
                return taken

    # -- signals between processes ------------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        self._check_open()
        await self._writer.do(run_id, runs.request_cancel, run_id)

    async def cancels(self, worker_id: str) -> Sequence[str]:
        self._check_open()
        return await self._reader.cancels(worker_id)

    async def changed(self, within: timedelta) -> bool:
        self._check_open()
        with self._pulse.watching():
            return await self._signs.changed(within)

    async def purge(self, *, limit: int = 100) -> int:
        self._check_open()
        return await self._writer.do(None, runs.purge, limit)

    async def inspect(self) -> Inspection:
        self._check_open()
        return await self._reader.inspect()
