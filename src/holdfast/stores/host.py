"""HostStore: a RunStore for one process over a host's own table of checkpoints."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.checkpoint.checkpoint_store import CheckpointStore, RunCheckpoint
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import RecordDecodeError, RunDamaged, StoreError, StoreUnavailable
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    TERMINAL_STATUSES,
    Mail,
    NewRun,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.workers import Claim
from holdfast.clock import Clock
from holdfast.stores.memory import MemoryStore
from holdfast.stores.memory_run import MemoryRun

_log = logging.getLogger(__name__)


class HostStore(MemoryStore):
    """A memory store that writes each changed run to the host's table before it acknowledges the change.

    If the table refuses, the change is undone. `open` loads what the table holds. Strikes and tokens are in the body of
    a checkpoint: poison detection and fencing outlive the process. One process at a time may use a table. Runs that
    have ended, limits, drafts and the tables of batteries are in memory only; so after a restart the id of an ended run
    is free. The row of an ended child is kept until its parent has ended, which reads its outcome. A row whose body is
    damaged is listed as a parked run. It can only be removed, and is left unchanged until then.
    """

    durable = True

    def __init__(self, table: CheckpointStore, *, clock: Clock | None = None) -> None:
        super().__init__(clock=clock)
        self._table = table
        self._is_loaded = False
        #: The runs that have a row.
        self._rows: set[str] = set()
        #: Those of them whose body cannot be read, as they are.
        self._damaged: dict[str, RunCheckpoint] = {}
        #: Held from a change until the table has it, so that no caller reads a change that may be undone.
        self._lock = asyncio.Lock()
        #: The runs that the current change touches, as they were before it; `None`: there was none.
        self._before: dict[str, MemoryRun | None] = {}

    async def open(self) -> None:
        await super().open()
        if self._is_loaded:
            return
        try:
            checkpoints = await self._table.list_interrupted()
        except Exception as exc:  # of the host's own code
            self._is_open = False
            raise StoreUnavailable(f"the host's table cannot list its checkpoints: {exc}") from exc
        runs = [run for run in map(self._read_run, checkpoints) if run is not None]
        self._token = max((run.token for run in runs), default=0)
        self._created = max((run.number for run in runs), default=0)
        for checkpoint in self._damaged.values():
            self._created += 1
            runs.append(_make_damaged_run(checkpoint, self._created))
        self._restore({run.new.run_id: run for run in runs})
        self._rows = set(self._runs)
        self._is_loaded = True

    def _read_run(self, checkpoint: RunCheckpoint) -> MemoryRun | None:
        try:
            return decode(bytes(checkpoint.body), MemoryRun)
        except RecordDecodeError as exc:
            _log.error("run %s of the host's table is damaged and left unchanged: %s", checkpoint.run_id, exc)
            self._damaged[checkpoint.run_id] = checkpoint
            return None

    async def close(self) -> None:
        async with self._lock:  # the write in progress is finished
            await super().close()

    # -- writes -------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        async with self._write_through(run.run_id):
            return await super().create(run, worker_id=worker_id, connection=connection)

    async def append(self, claim: Claim, write: Append) -> None:
        run = self._runs.get(claim.run_id)
        if run is not None and not (write.entries or write.consumed) and write.progress == run.progress:
            async with self._lock:  # a claim check: there is nothing to write
                await super().append(claim, write)
            return
        async with self._write_through(claim.run_id):
            await super().append(claim, write)

    async def release(self, claim: Claim, release: Release) -> None:
        async with self._write_through(claim.run_id):
            if release.notify is not None and release.notify.run_id in self._runs:
                self._remember(release.notify.run_id)
            await super().release(claim, release)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        async with self._write_through():
            await super().remove(run_id, claim=claim, erase=erase)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        async with self._write_through():
            return await super().claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        async with self._write_through():
            return await super().claim_next(worker_id, agents=agents, limit=limit)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        async with self._write_through(run_id):
            return await super().post(run_id, mail)

    async def request_cancel(self, run_id: str) -> None:
        async with self._write_through(run_id):
            await super().request_cancel(run_id)

    async def purge(self, *, limit: int = 100) -> int:
        async with self._write_through():
            return await super().purge(limit=limit)

    # -- reads --------------------------------------------------------------------------------------------------

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        async with self._lock:
            self._check_undamaged(run_id)
            return await super().load(run_id, after=after)

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        async with self._lock:
            return await super().list_page(filter, limit=limit, cursor=cursor, oldest_first=oldest_first)

    # -- internals ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _write_through(self, *run_ids: str) -> AsyncIterator[None]:
        """Write the runs that the block changes to the table. Undo the change if the block or the table raises."""
        async with self._lock:
            self._before = {}
            for run_id in run_ids:
                self._remember(run_id)
            try:
                yield
                await self._write_rows()
            except BaseException:
                self._restore({**self._runs, **self._before})
                raise

    def _remember(self, run_id: str) -> None:
        if run_id not in self._before:
            run = self._runs.get(run_id)
            self._before[run_id] = None if run is None else run.copy()

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        self._remember(run.new.run_id)
        return super()._claim_run(run, worker_id)

    def _remove_tree(self, run_id: str) -> None:
        for each in self._list_tree(run_id):
            self._remember(each)
        super()._remove_tree(run_id)

    def _list_tree(self, run_id: str) -> list[str]:
        tree = [run_id]
        for each in tree:
            tree.extend(self._children.get(each, ()))
        return tree

    async def _write_rows(self) -> None:
        # The rows of the children of an ended run are deleted with it.
        changed = [self._list_tree(run_id) if self._has_ended(run_id) else [run_id] for run_id in self._before]
        written: list[str] = []
        for run_id in self._before.keys() & self._runs.keys():
            self._check_undamaged(run_id)
        try:
            for run_id in dict.fromkeys(itertools.chain.from_iterable(changed)):
                await self._write_row(run_id, self._runs.get(run_id))
                written.append(run_id)
        except BaseException:
            # Only some rows of the change were written: restore those rows as far as the table accepts it.
            for run_id in written:
                with contextlib.suppress(StoreError):
                    await self._write_row(run_id, self._before.get(run_id))
            raise
        for run_id in self._damaged.keys() - self._runs.keys():
            del self._damaged[run_id]

    def _check_undamaged(self, run_id: str) -> None:
        if run_id in self._damaged:
            raise RunDamaged(run_id, "its row in the host's table is not what was written")

    async def _write_row(self, run_id: str, run: MemoryRun | None) -> None:
        try:
            if run is not None and self._is_kept(run):
                await self._table.save(self._damaged.get(run_id) or _make_checkpoint(run))
                self._rows.add(run_id)
            elif run_id in self._rows:
                await self._table.delete(run_id)
                self._rows.discard(run_id)
        except StoreError:
            raise
        except Exception as exc:  # of the host's own code
            raise StoreUnavailable(f"the host's table did not accept run {run_id}: {exc}") from exc

    def _has_ended(self, run_id: str) -> bool:
        run = self._runs.get(run_id)
        return run is None or run.status in TERMINAL_STATUSES

    def _is_kept(self, run: MemoryRun) -> bool:
        """Whether the run has not ended, or a run above it may still read its outcome."""
        while run.status in TERMINAL_STATUSES:
            parent = self._runs.get(run.new.parent_run_id or "")
            if parent is None:
                return False
            run = parent
        return True

    def _restore(self, runs: dict[str, MemoryRun | None]) -> None:
        """Make these the runs of the store, in the order of their creation."""
        found = sorted((run for run in runs.values() if run is not None), key=attrgetter("number"))
        self._runs = {run.new.run_id: run for run in found}
        self._children = {}
        for run_id, run in self._runs.items():
            if run.new.parent_run_id is not None:
                self._children.setdefault(run.new.parent_run_id, {})[run_id] = None
        self._unread = {run_id: None for run_id, run in self._runs.items() if run.unread}
        self._cancel_requested = {run_id: None for run_id, run in self._runs.items() if run.cancel_requested}


def _make_damaged_run(checkpoint: RunCheckpoint, number: int) -> MemoryRun:
    """Return what listings show of a row whose body cannot be read."""
    new = NewRun(
        run_id=checkpoint.run_id,
        agent_name=checkpoint.agent_name,
        caller_id=checkpoint.caller_id,
        info=b"",
        progress=b"",
        entries=(),
    )
    return MemoryRun(
        new=new,
        created_at=checkpoint.updated_at,
        updated_at=checkpoint.updated_at,
        not_before=checkpoint.updated_at,
        progress=b"",
        status=RunStatus.PARKED,
        reason="damaged: its row in the host's table is not what was written",
        number=number,
    )


def _make_checkpoint(run: MemoryRun) -> RunCheckpoint:
    try:
        steps = decode(run.progress, Progress).steps
    except RecordDecodeError:  # not of our codec
        steps = 0
    return RunCheckpoint(
        run_id=run.new.run_id,
        agent_name=run.new.agent_name,
        caller_id=run.new.caller_id,
        status=run.status,
        steps=steps,
        updated_at=run.updated_at,
        body=msgspec.Raw(msgspec.json.encode(run)),
    )
