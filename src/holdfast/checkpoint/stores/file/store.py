"""The file store: what callers see. The work is done in threads, so no disk ever holds up the event loop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypeVar

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.errors import StoreClosed, StoreUnavailable
from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.stores.file.access import Access
from holdfast.checkpoint.stores.file.disk import Disk, store_error
from holdfast.checkpoint.stores.file.finding import Finder
from holdfast.checkpoint.stores.file.inspection import inspect
from holdfast.checkpoint.stores.file.layout import Layout
from holdfast.checkpoint.stores.file.locks import LockHeld
from holdfast.checkpoint.stores.file.runs import Runs
from holdfast.checkpoint.stores.file.signals import Signals
from holdfast.checkpoint.stores.file.threads import Threads
from holdfast.checkpoint.stores.file.workers import Workers
from holdfast.clock import SYSTEM_CLOCK, Clock

T = TypeVar("T")

#: Syncs of several runs go to the disk side by side, which then takes them together.
_THREADS = 16
_LOOK_EVERY = 0.1


class FileStore:
    """Runs in one folder, a readable JSON-lines journal for each. For small hosts, and for people who want to look.

    Any number of processes on one host may use a folder. On a network file system it is as safe as that system's
    `flock` and `fsync` are; docs/stores/file.md says more.

    Args:
        durability: `full`: what was acknowledged survives a power cut. `process`: it survives the process.
        dead_after: a worker on another host is dead once it showed no sign of life for so long.
        patience: how long to wait for another process that is changing the same run.
    """

    durable = True

    def __init__(
        self,
        folder: str | Path,
        *,
        durability: Literal["full", "process"] = "full",
        dead_after: timedelta = timedelta(seconds=30),
        patience: timedelta = timedelta(seconds=10),
        clock: Clock = SYSTEM_CLOCK,
        disk: Disk | None = None,
    ) -> None:
        self._layout = Layout(Path(folder).absolute())  # a tool may change the working directory
        self._disk = disk or Disk(synced=durability == "full")
        self._workers = Workers(self._layout, self._disk, dead_after=dead_after)
        self._access = Access(self._layout, self._disk, patience=patience.total_seconds())
        self._runs = Runs(self._layout, self._disk, self._access, self._workers, clock=clock)
        self._finder = Finder(self._layout, self._access, self._runs, self._workers, clock=clock)
        self._signals = Signals(self._layout.changes, self._disk)
        self._threads: Threads | None = None
        #: Set at the end of the opening or closing that is under way.
        self._turn: asyncio.Event | None = None
        #: Set, and replaced by a new one, at each change made through this store.
        self._sign = asyncio.Event()
        self._seen = (0, 0)

    async def open(self) -> None:
        while self._turn is not None:
            await self._turn.wait()
        if self._threads is None:
            with self._alone():
                threads = Threads(_THREADS, "holdfast-file")
                try:
                    await threads.do(lambda: self._translated(self._prepare))
                except BaseException:
                    await threads.finish(self._workers.stop)
                    raise
                self._threads = threads

    async def close(self) -> None:
        """As the contract says; a caller that is cancelled still waits for the end."""
        cancel: asyncio.CancelledError | None = None
        while self._turn is not None:
            try:
                await self._turn.wait()
            except asyncio.CancelledError as error:
                cancel = error
        if self._threads is not None:
            with self._alone():
                threads, self._threads = self._threads, None
                self._wake()
                try:
                    await threads.finish(self._workers.stop)
                finally:
                    self._runs.close()
        if cancel is not None:
            raise cancel

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else opens or closes the store meanwhile: they wait for the end of it."""
        self._turn = turn = asyncio.Event()
        try:
            yield
        finally:
            self._turn = None
            turn.set()

    # -- workers ------------------------------------------------------------------------------------------------

    async def enlist(self, worker: Worker) -> None:
        await self._do(lambda: self._workers.enlist(worker))

    async def discharge(self, worker_id: str) -> None:
        await self._change(lambda: self._workers.discharge(worker_id))

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        return await self._change(lambda: self._runs.create(run, worker_id))

    async def append(self, claim: Claim, write: Write) -> None:
        await self._do(lambda: self._runs.append(claim, write))

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        def load() -> StoredRun:
            head, entries = self._access.load(run_id, after)
            return StoredRun(record=self._finder.record(head), entries=entries)

        return await self._do(load)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await self._change(lambda: self._runs.settle(claim, ending))

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        await self._change(lambda: self._runs.remove(run_id, claim))

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        for record in await self._do(lambda: self._finder.records(wanted)):
            yield record

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        return await self._do(lambda: self._runs.claim(run_id, worker_id, statuses, steal=steal))

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        return await self._do(lambda: self._finder.claim_next(worker_id, agents, limit))

    # -- signals between processes ------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        await self._change(lambda: self._runs.request_cancel(run_id))

    async def cancels(self, worker_id: str) -> Sequence[str]:
        return await self._do(lambda: self._finder.cancels(worker_id))

    async def changed(self, within: timedelta) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within.total_seconds()
        seen = self._seen
        while True:
            sign = self._sign
            last = await self._do(self._signals.last)
            left = deadline - loop.time()
            if last != seen:
                self._seen = last
                return True
            if left <= 0:
                return False
            # Not `wait_for`: until Python 3.12 it swallows a cancel that comes together with the sign.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_EVERY)):
                    await sign.wait()

    async def purge(self, *, limit: int = 100) -> int:
        return await self._change(lambda: self._finder.purge(limit))

    async def inspect(self) -> Inspection:
        return await self._do(lambda: inspect(self._layout, self._access))

    # -- within -------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._layout.prepare(self._disk)
        self._seen = self._signals.last()
        # What others left behind can wait, and in a folder we may only read it has to.
        with contextlib.suppress(OSError):
            self._runs.keep_promises()
            self._layout.remove_leftovers(self._disk)
            self._workers.forget_the_dead()

    async def _change(self, work: Callable[[], T]) -> T:
        """Do what others may wait for, and tell them."""

        def work_and_tell() -> T:
            result = work()
            self._signals.give()
            return result

        result = await self._do(work_and_tell)
        self._wake()
        return result

    def _wake(self) -> None:
        self._sign.set()
        self._sign = asyncio.Event()

    async def _do(self, work: Callable[[], T]) -> T:
        """The result of `work`, done in a thread. A caller that is cancelled still waits for its end."""
        if self._threads is None:
            raise StoreClosed(
                f"the file store {self._layout.folder} is not open: call open() first, and nothing after close()"
            )
        return await self._threads.do(lambda: self._translated(work))

    def _translated(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except LockHeld as held:
            raise StoreUnavailable(f"{held} is held by another process, which may be stopped: try again") from None
        except OSError as error:
            raise store_error(error, self._layout.folder) from error
