"""Who is alive, as the file store knows it: by the process on this host, by the heartbeat from elsewhere."""

import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import msgspec

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_worker, begun, listed, record_of

INTERRUPTED = RunFilter(interrupted=True)


@asynccontextmanager
async def opened(folder: Path, dead_after: timedelta = timedelta(seconds=30)) -> AsyncIterator[FileStore]:
    store = FileStore(folder, dead_after=dead_after)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _from_elsewhere() -> Worker:
    return Worker(worker_id="far-away", process=msgspec.structs.replace(this_process(), host="another host"))


def _heard(folder: Path, *, ago: float) -> None:
    moment = time.time() - ago
    os.utime(folder / "workers" / "far-away.json", (moment, moment))


def _await_a_heartbeat(folder: Path) -> None:
    path, deadline = folder / "workers" / "far-away.json", time.monotonic() + 30
    _heard(folder, ago=1000)
    while time.time() - path.stat().st_mtime > 900:
        assert time.monotonic() < deadline, "no heartbeat came"
        time.sleep(0.01)


async def test_a_worker_elsewhere_is_alive_as_long_as_its_heartbeat_is_heard(tmp_path: Path) -> None:
    async with opened(tmp_path) as far_away:
        await far_away.enlist(_from_elsewhere())
        await begun(far_away, "far-away")
    async with opened(tmp_path) as here:
        _heard(tmp_path, ago=25)
        assert await listed(here, INTERRUPTED) == []
        assert (await record_of(here)).owner_alive
        _heard(tmp_path, ago=31)
        assert await listed(here, INTERRUPTED) == ["run-1"]
    async with opened(tmp_path, dead_after=timedelta(minutes=1)) as patient:
        assert await listed(patient, INTERRUPTED) == []
        assert (tmp_path / "workers" / "far-away.json").exists(), "it may only be asleep"


async def test_the_heart_beats_while_the_event_loop_is_held_up(tmp_path: Path) -> None:
    async with opened(tmp_path, dead_after=timedelta(milliseconds=500)) as store:
        await store.enlist(_from_elsewhere())
        await begun(store, "far-away")
        for _ in range(3):
            _await_a_heartbeat(tmp_path)


async def test_the_heart_beats_again_in_a_store_that_is_opened_again(tmp_path: Path) -> None:
    store = FileStore(tmp_path, dead_after=timedelta(milliseconds=500))
    for _ in range(3):
        await store.open()
        await store.enlist(_from_elsewhere())
        _await_a_heartbeat(tmp_path)
        await store.close()
        assert not any("heartbeat" in thread.name for thread in threading.enumerate())


async def test_a_recycled_pid_is_not_the_old_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        impostor = msgspec.structs.replace(this_process(), started="long ago")
        await store.enlist(Worker(worker_id="old", process=impostor))
        await begun(store, "old")
        assert await listed(store, INTERRUPTED) == ["run-1"]


async def test_a_worker_discharged_by_another_process_stays_so(tmp_path: Path) -> None:
    async with opened(tmp_path, dead_after=timedelta(milliseconds=50)) as store, opened(tmp_path) as other:
        gone, stays = a_worker(), a_worker()
        await store.enlist(gone)
        await store.enlist(stays)
        await begun(store, gone.worker_id)
        await other.discharge(gone.worker_id)
        path = tmp_path / "workers" / f"{stays.worker_id}.json"
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 60
        while path.stat().st_mtime == 0:
            assert time.monotonic() < deadline, "no heartbeat came"
            time.sleep(0.01)  # noqa: ASYNC251 - the heart has a thread of its own
        assert await listed(other, INTERRUPTED) == ["run-1"]


async def test_a_worker_whose_file_is_spoilt_is_dead(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        worker = a_worker()
        await store.enlist(worker)
        await begun(store, worker.worker_id)
        path = tmp_path / "workers" / f"{worker.worker_id}.json"
        for spoilt in (b"\0\0\0", path.read_bytes().replace(b'"pid":', b'"\xffid":'), b'{"worker_id":"\xff"}'):
            path.write_bytes(spoilt)
            assert await listed(store, INTERRUPTED) == ["run-1"]
            async with opened(tmp_path) as other:
                assert await listed(other, INTERRUPTED) == ["run-1"]


async def test_the_files_of_dead_workers_of_this_host_go_at_the_next_opening(tmp_path: Path) -> None:
    living = a_worker()
    async with opened(tmp_path) as store:
        await store.enlist(living)
        impostor = msgspec.structs.replace(this_process(), started="long ago")
        await store.enlist(Worker(worker_id="dead", process=impostor))
        await store.enlist(_from_elsewhere())
    async with opened(tmp_path):
        assert sorted(path.stem for path in (tmp_path / "workers").iterdir()) == sorted(["far-away", living.worker_id])


async def test_no_thread_is_left_after_close(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with opened(tmp_path) as store:
        await store.enlist(a_worker())
        ours = set(threading.enumerate()) - before
        assert any("heartbeat" in thread.name for thread in ours)
    assert not any(thread.is_alive() for thread in ours)
