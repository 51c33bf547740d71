"""A durable store that is slow and plainly right: all of it is one file, read and written anew by every call.

It is durable as far as `kill -9` goes; a power cut it need not survive.
It stands in for a store of a third party. The broken stores are variations of it.
"""

import asyncio
import contextlib
import fcntl
import time
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec

from holdfast.checkpoint.claim import Claim, ProcessIdentity, WorkerIdentity, is_process_alive
from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.stores.memory import MemoryStore, _Run


class Snapshot(msgspec.Struct):
    """Everything that is in the store."""

    token: int = 0
    workers: dict[str, ProcessIdentity] = msgspec.field(default_factory=dict)
    runs: dict[str, _Run] = msgspec.field(default_factory=dict)
    children: dict[str, set[str]] = msgspec.field(default_factory=dict)
    cancel_asked: set[str] = msgspec.field(default_factory=set)
    #: Counts the changes, for those who wait for one.
    changes: int = 0
    #: Of the entries of each run.
    checksums: dict[str, list[int]] = msgspec.field(default_factory=dict)


class SnapshotStore(MemoryStore):
    """Does in memory what is asked, between reading all of the file and replacing all of it, under a lock."""

    durable = True

    def __init__(self, location: str) -> None:
        super().__init__()
        self.path = Path(location)
        self._processes: dict[str, ProcessIdentity] = {}
        self._changes = 0
        self._checksums: dict[str, list[int]] = {}

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        self._check_open()
        with self.lock():
            self.read()
            yield
            self.write()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> None:
        packed = self.path.read_bytes() if self.path.exists() else msgspec.msgpack.encode(Snapshot())
        snapshot = msgspec.msgpack.decode(packed, type=Snapshot)
        self._token, self._processes, self._runs = snapshot.token, snapshot.workers, snapshot.runs
        self._children, self._cancel_requested = snapshot.children, snapshot.cancel_asked
        self._changes, self._checksums = snapshot.changes, snapshot.checksums
        self._workers = {worker_id for worker_id in self._processes if self.is_worker_alive(worker_id)}

    def write(self) -> None:
        self.replace(msgspec.msgpack.encode(self.snapshot()))

    def snapshot(self) -> Snapshot:
        return Snapshot(
            token=self._token,
            workers=self._processes,
            runs=self._runs,
            children=self._children,
            cancel_asked=self._cancel_requested,
            changes=self._changes,
            checksums=self._checksums,
        )

    def replace(self, packed: bytes) -> None:
        temporary = self.path.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_bytes(packed)
        temporary.rename(self.path)

    def is_worker_alive(self, worker_id: str) -> bool:
        return is_process_alive(self._processes[worker_id]) is not False

    def update_checksums(self, run_id: str) -> None:
        """Keep the checksums of what the run's journal holds now."""
        if run_id in self._runs:
            self._checksums[run_id] = [entry.checksum() for entry in self._runs[run_id].journal]

    def _notify_change(self) -> None:
        self._changes += 1
        super()._notify_change()

    async def register_worker(self, worker: WorkerIdentity) -> None:
        with self.exclusive():
            self._processes[worker.worker_id] = worker.process

    async def deregister_worker(self, worker_id: str) -> None:
        with self.exclusive():
            self._processes.pop(worker_id, None)
            await super().deregister_worker(worker_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        with self.exclusive():
            claim = await super().create(run, worker_id=worker_id)
            self.update_checksums(run.run_id)
            return claim

    async def append(self, claim: Claim, write: Append) -> None:
        with self.exclusive():
            await super().append(claim, write)
            self.update_checksums(claim.run_id)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        with self.exclusive():
            stored = await super().load(run_id, after=after)
            self.check(run_id, self._runs[run_id].journal)
            return stored

    async def get_record(self, run_id: str) -> RunRecord:
        with self.exclusive():
            return await super().get_record(run_id)

    def check(self, run_id: str, journal: Sequence[Entry]) -> None:
        if [entry.checksum() for entry in journal] != self._checksums[run_id]:
            raise RunDamaged(run_id, "an entry is not what was written")

    async def release(self, claim: Claim, release: Release) -> None:
        with self.exclusive():
            await super().release(claim, release)
            self.update_checksums(claim.run_id)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        with self.exclusive():
            await super().remove(run_id, claim=claim)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        with self.exclusive():
            found = [record async for record in super().list_runs(filter)]
        for record in found:
            yield record

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[RunStatus] = CLAIMABLE_STATUSES, steal: bool = False
    ) -> Claim:
        with self.exclusive():
            return await super().claim(run_id, worker_id, statuses=statuses, steal=steal)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        with self.exclusive():
            return await super().claim_next(worker_id, agents=agents, limit=limit)

    async def request_cancel(self, run_id: str) -> None:
        with self.exclusive():
            await super().request_cancel(run_id)

    async def pending_cancellations(self, worker_id: str) -> Sequence[str]:
        with self.exclusive():
            return await super().pending_cancellations(worker_id)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        with self.exclusive():
            before = self._changes
        deadline = time.monotonic() + timeout.total_seconds()
        while time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            with self.exclusive():
                if self._changes != before:
                    return True
        return False

    async def purge(self, *, limit: int = 100) -> int:
        with self.exclusive():
            return await super().purge(limit=limit)


def damage(location: str, run_id: str, body: bytes) -> None:
    """Flip a bit in an entry of the run."""
    path = Path(location)
    snapshot = msgspec.msgpack.decode(path.read_bytes(), type=Snapshot)
    journal = snapshot.runs[run_id].journal
    [n] = [n for n, entry in enumerate(journal) if entry.body == body]
    journal[n] = msgspec.structs.replace(journal[n], body=bytes([body[0] ^ 1]) + body[1:])
    path.write_bytes(msgspec.msgpack.encode(snapshot))
