"""The SQLite store: all runs in one file."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from os import PathLike
from typing import Any

from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    Mail,
    NewRun,
    Pending,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import NO_SUBMIT_CONNECTION, Durability, StoreHealth
from holdfast.checkpoint.workers import Claim, Fleet, LimitUsage, WorkerHeartbeat, WorkerIdentity
from holdfast.clock import CLOCK, Clock
from holdfast.concurrency import run_in_background
from holdfast.config import LimitKind
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Transactions
from holdfast.db.sqlite_tables import SqliteTables
from holdfast.db.tables import Tables
from holdfast.stores.sqlite import claiming, heartbeat, runs
from holdfast.stores.sqlite.claiming import FairQueue, claim
from holdfast.stores.sqlite.database import Database
from holdfast.stores.sqlite.drafts import DraftWriter
from holdfast.stores.sqlite.heartbeat import ChangeNotifier, Heartbeat
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.reader import Reader
from holdfast.stores.sqlite.runs import UserTransaction, post
from holdfast.stores.sqlite.writer import Writer

#: How often `remove` looks whether removed journals are deleted.
_SWEEP_POLL_S = 0.02


class SqliteStore:
    """Keeps runs in one file, for any number of processes on one host.

    One thread commits all waiting writes as one transaction. A caller resumes when its write is on the disk.
    Reads have their own connections; they neither wait for writes nor block them. Neither blocks the event loop,
    except for a lone run whose writes follow one another closely on a fast disk (see `Writer`).
    """

    durable = True
    transactions: Transactions = "sync"

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        durability: Durability = "full",
        lease_timeout: timedelta = timedelta(seconds=30),
        timeout: timedelta = timedelta(seconds=10),
        vfs: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is read or written before `open`.

        Args:
            path: the file. It and its folder are created if they do not exist. A relative path is resolved here.
            durability: `full`: acknowledged writes survive a power cut. `process`: only the end of the process.
            lease_timeout: a worker in another container is dead when this store has not seen a heartbeat for this long.
                On this host a dead process is detected at once.
            timeout: how long a write waits for a lock of another process before it fails with `StoreUnavailable`.
            vfs: the name of a registered SQLite VFS, such as that of a simulated disk.
        """
        clock = self._clock = clock or CLOCK.get()
        self._lease_timeout = lease_timeout
        self._database = Database(path, durability=durability, timeout=timeout, vfs=vfs)
        self._tables = SqliteTables(path, timeout=timeout, vfs=vfs)
        self._liveness = Liveness(clock, lease_timeout)
        self._fair_queue = FairQueue(self._liveness)
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- open and closed ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._is_open:
            if self._loop is None or not self._loop.is_closed():
                return
            self._abandon()
        loop = self._loop = asyncio.get_running_loop()
        self._notifier = ChangeNotifier(loop, self._clock)
        self._writer = Writer(self._database, self._clock, self._notifier.notify)
        self._notifier.start(await self._writer.start(loop))
        self._reader = Reader(self._database, self._liveness)
        self._heartbeat = Heartbeat(
            self._database,
            self._clock,
            self._lease_timeout,
            self._liveness,
            self._notifier.notify,
            can_write=self._writer.is_running,
        )
        self._drafts = DraftWriter(self._database, self._clock)
        self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._closing = run_in_background(self._close())
        if self._closing is not None:
            await asyncio.shield(self._closing)
        await self._tables.close()

    async def _close(self) -> None:
        self._notifier.wake_all()
        self._heartbeat.stop()
        await self._drafts.stop()
        await self._reader.close()
        await self._writer.stop()

    def _abandon(self) -> None:
        """End the threads of an event loop that was closed while the store was open."""
        self._heartbeat.stop()
        self._reader.abandon()
        self._writer.abandon()

    def tables(self) -> Tables:
        return self._tables

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed(f"{self._database.path} is not open: call open() first, and do not use it after close()")

    # -- workers ------------------------------------------------------------------------------------------------------

    async def register_worker(self, worker: WorkerIdentity) -> None:
        self._check_open()
        await self._writer.submit(None, heartbeat.register_worker, worker, self._liveness)
        self._heartbeat.add(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        self._check_open()
        self._heartbeat.leave(worker_id)
        await self._writer.submit(None, heartbeat.deregister_worker, worker_id)
        self._heartbeat.left(worker_id)

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        self._check_open()
        return await self._reader.list_workers()

    async def read_fleet(self) -> Fleet:
        self._check_open()
        return await self._reader.read_fleet(self._clock.now())

    # -- one run ------------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        self._check_open()
        if connection is not None:
            raise DefinitionError(NO_SUBMIT_CONNECTION)
        return await self._writer.submit(run.run_id, runs.create, run, worker_id, self._liveness)

    def append(self, claim: Claim, write: Append) -> Awaitable[None]:
        self._check_open()
        work = runs.append_after_mail if write.consumed or write.unless_mail else runs.append
        return self._writer.submit(claim.run_id, work, claim, write)

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        self._check_open()
        if inspect.iscoroutinefunction(function):
            raise DefinitionError("a transaction holds the only write lock of SQLite: give a plain function")
        return await self._writer.transact(UserTransaction(claim, function, make_write))

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        self._check_open()
        return await self._reader.load(run_id, after)

    async def release(self, claim: Claim, release: Release) -> None:
        self._check_open()
        await self._writer.submit(claim.run_id, runs.release, claim, release)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        self._check_open()
        await self._writer.submit(run_id, runs.remove, run_id, claim, self._liveness)
        if erase:
            left = removed = await self._writer.submit(None, runs.list_garbage)
            while left := left & removed:
                await asyncio.sleep(_SWEEP_POLL_S)
                # A transaction: it makes the vacuum retry what failed.
                left = await self._writer.submit(None, runs.list_garbage)

    # -- finding and claiming -----------------------------------------------------------------------------------------

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        self._check_open()
        return await self._reader.list_page(filter or RunFilter(), limit, cursor, oldest_first=oldest_first)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        self._check_open()
        return await self._writer.submit(
            run_id, claim, run_id, worker_id, frozenset(statuses), steal, within_limits, self._liveness
        )

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        wanted, cursor = frozenset(agents), None
        while True:
            # One transaction per scan: writes do not wait for all of them.
            claimed, cursor = await self._writer.submit(
                None, self._fair_queue.claim_next, worker_id, wanted, limit, cursor
            )
            if claimed or cursor is None:
                return claimed

    # -- concurrency limits -------------------------------------------------------------------------------------------

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        self._check_open()
        return await self._writer.submit(None, claiming.set_limit, kind, name, max_runs, default)

    async def list_limits(self) -> Sequence[LimitUsage]:
        self._check_open()
        return await self._reader.list_limits()

    # -- mail ---------------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        self._check_open()
        return await self._writer.submit(run_id, post, run_id, mail)

    # -- changes by other processes ------------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        self._check_open()
        await self._writer.submit(run_id, runs.request_cancel, run_id)

    async def pending(self, worker_id: str) -> Pending:
        self._check_open()
        return await self._reader.pending(worker_id, self._clock.now())

    async def wait_for_change(self, timeout: timedelta) -> bool:
        self._check_open()
        with self._heartbeat.polling():
            return await self._notifier.wait_for_change(timeout)

    # -- drafts -------------------------------------------------------------------------------------------------------

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        self._check_open()
        await self._drafts.put(claim, draft)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        self._check_open()
        if keep_for:
            await self._drafts.request(run_id, keep_for)
        return await self._reader.read_draft(run_id)

    async def purge(self, *, limit: int = 100) -> int:
        self._check_open()
        return await self._writer.submit(None, runs.purge, limit)

    async def check_health(self, *, quick: bool = False) -> StoreHealth:
        if quick:
            return await asyncio.to_thread(self._database.read_version)
        self._check_open()
        return await self._reader.check_health()
