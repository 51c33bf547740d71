"""What a simulator replaces under the SQLite store: the disk, the processes of the host, and their deaths."""

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.checkpoint.workers import PROCESSES, Processes, ProcessIdentity, WorkerIdentity, this_process
from holdfast.concurrency import THREADS, Thread, Threads
from holdfast.db.tables import Schema
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_processes.store_under_test import create_claimed


class RecordingDisk(apsw.VFS):
    """Passes everything to SQLite's default VFS, and remembers the files."""

    def __init__(self) -> None:
        self.opened: set[str] = set()
        super().__init__("holdfast-test-disk", "")

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        self.opened.add(Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "").name)
        return super().xOpen(name, flags)


@pytest.fixture
def disk() -> Iterator[RecordingDisk]:
    disk = RecordingDisk()
    yield disk
    disk.unregister()


async def test_every_connection_of_a_store_and_of_its_tables_uses_the_vfs_that_was_named(
    disk: RecordingDisk, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "runs.db", vfs="holdfast-test-disk")
    await store.open()
    assert {"runs.db", "runs.db-wal"} <= disk.opened
    disk.opened.clear()
    await store.tables().open(Schema(name="test", migrations=[["CREATE TABLE test (number INTEGER)"]]))
    await store.close()
    assert "runs.db" in disk.opened


class SimulatedProcesses(Processes):
    """Several processes in one."""

    def __init__(self, pid: int, dead: set[int]) -> None:
        """`dead`: pids."""
        self._pid, self._dead = pid, dead

    def identify_own(self) -> ProcessIdentity:
        return ProcessIdentity(host="simulated", pid=self._pid, started="0")

    def is_alive(self, process: ProcessIdentity) -> bool | None:
        return process.pid not in self._dead if process.host == "simulated" else None


class InheritingThreads(Threads):
    """Threads that belong to the simulated process that started them."""

    def start(self, work: Callable[[], object], *, name: str) -> Thread:
        return super().start(partial(contextvars.copy_context().run, work), name=name)


async def test_two_simulated_processes_have_their_own_identity_and_see_each_other_die(tmp_path: Path) -> None:
    dead: set[int] = set()

    async def open_worker(pid: int) -> tuple[SqliteStore, str]:
        PROCESSES.set(SimulatedProcesses(pid, dead))
        THREADS.set(InheritingThreads())
        store = SqliteStore(tmp_path / "runs.db")
        await store.open()
        worker = WorkerIdentity(worker_id=f"worker-{pid}", process=this_process())
        await store.register_worker(worker)
        return store, worker.worker_id

    first, first_id = await asyncio.create_task(open_worker(1), context=contextvars.copy_context())
    second, second_id = await asyncio.create_task(open_worker(2), context=contextvars.copy_context())
    await create_claimed(first, first_id)
    assert await second.claim_next(second_id, agents=["agent"], limit=1) == []
    dead.add(1)
    [claim] = await second.claim_next(second_id, agents=["agent"], limit=1)
    assert claim.taken_from == first_id
    await second.close()
    await first.close()
