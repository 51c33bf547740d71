"""Whatever the disk refuses, the file store says what to do, has changed nothing, and goes on once it is possible."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.stores.another_user import traversable

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import StoreDenied, StoreFull, StoreUnavailable
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending, RunRecord, StoredRun
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import AnyPath, Disk
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted

ERRORS = {errno.ENOSPC: StoreFull, errno.EROFS: StoreDenied, errno.EIO: StoreUnavailable}


class FailingDisk(Disk):
    """Refuses one operation, once; of a write it does the first half."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        #: Only these count.
        self.what = ""
        self.code = errno.ENOSPC
        self.refused = ""

    def _count(self, what: str) -> None:
        if self.left is not None and self.what in ("", what):
            self.left -= 1
            if self.left < 0:
                self.left, self.refused = None, what
                raise OSError(self.code, os.strerror(self.code))

    def create(self, path: AnyPath) -> int:
        self._count("create")
        return super().create(path)

    def open(self, path: AnyPath) -> int:
        self._count("open")
        return super().open(path)

    def open_or_create(self, path: AnyPath) -> int:
        self._count("open or create")
        return super().open_or_create(path)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        try:
            self._count("write")
        except OSError:
            super().write(fd, data[: len(data) // 2], offset)
            raise
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self._count("sync")
        super().sync(fd)

    def sync_folder(self, path: AnyPath) -> None:
        self._count("sync folder")
        super().sync_folder(path)

    def link(self, source: AnyPath, target: AnyPath) -> None:
        self._count("link")
        super().link(source, target)

    def replace(self, source: AnyPath, target: AnyPath) -> None:
        self._count("replace")
        super().replace(source, target)


@asynccontextmanager
async def opened(folder: Path, disk: Disk | None = None) -> AsyncIterator[FileStore]:
    store = FileStore(folder, disk=disk)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


Call = Callable[[FileStore, Claim], Awaitable[object]]

CALLS: dict[str, Call] = {
    "create": lambda store, claim: store.create(a_run("new", parent_run_id="run-1"), worker_id=claim.worker_id),
    "append": lambda store, claim: store.append(claim, a_write(1, b'{"more":1}', progress=b"further")),
    "rewrite": lambda store, claim: store.append(claim, a_write(1, b"all", progress=b"further", replace=True)),
    "settle": lambda store, claim: store.settle(claim, Ending(status=Status.DONE, reason="over")),
    "claim": lambda store, claim: store.claim("run-1", claim.worker_id, steal=True),
    "cancel": lambda store, claim: store.request_cancel("run-1"),
    "remove": lambda store, claim: store.remove("child"),
    "remove a family": lambda store, claim: store.remove("run-1", claim=claim),
}


async def _snapshot(folder: Path) -> dict[str, StoredRun]:
    """What another process sees."""
    async with opened(folder) as store:
        return {record.run_id: await store.load(record.run_id) async for record in store.records()}


@pytest.mark.parametrize("code", ERRORS, ids=lambda code: errno.errorcode[code])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_that_the_disk_refuses_changes_nothing_and_may_be_made_again(
    tmp_path: Path, call: Call, code: int
) -> None:
    disk = FailingDisk()
    disk.code = code
    refused = []
    for n in range(100):
        async with opened(tmp_path / str(n), disk) as store:
            claim = await begun(store, await enlisted(store))
            await store.create(a_run("child", parent_run_id="run-1"))
            if call is not CALLS["cancel"]:
                await store.request_cancel("run-1")
            before = await _snapshot(tmp_path / str(n))
            disk.left, disk.refused = n, ""
            [result] = await asyncio.gather(call(store, claim), return_exceptions=True)
            if isinstance(result, BaseException):
                assert type(result) is ERRORS[code]
                refused.append(disk.refused)
                assert await _snapshot(tmp_path / str(n)) == before
                await call(store, claim)
            if disk.left is not None:
                disk.left = None
                break
    assert {"sync", "sync folder"} & set(refused), "nothing that matters was refused: this proves nothing"


async def test_after_a_failed_append_the_next_one_is_whole(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with opened(tmp_path / "store", disk) as store:
        claim = await begun(store, await enlisted(store))
        disk.what = "write"
        for seq in range(1, 10):
            disk.left = 0
            with pytest.raises(StoreFull, match="free space"):
                await store.append(claim, a_write(seq, b"x" * 1000))
            assert disk.refused == "write"
            await store.append(claim, a_write(seq, b"%d" % seq))
        assert await bodies_of(store) == [b"begin", *(b"%d" % seq for seq in range(1, 10))]


_FULL = """
import asyncio, resource, sys
from holdfast.checkpoint.errors import StoreFull
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted

async def main():
    store = FileStore(sys.argv[1])
    await store.open()
    claim = await begun(store, await enlisted(store))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    saved = 0
    try:
        while saved < 100:
            await store.append(claim, a_write(saved + 1, b"x" * 1999))
            saved += 1
    except StoreFull:
        pass
    assert 0 < saved < 10, saved
    assert len(await bodies_of(store)) == saved + 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.append(claim, a_write(saved + 1, b"room again"))
    assert (await bodies_of(store))[-2:] == [b"x" * 1999, b"room again"]
    await store.close()

asyncio.run(main())
print("went on")
"""


def test_a_disk_that_is_really_full_loses_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


_DENIED = """
import asyncio, concurrent.futures.thread, encodings.idna, os, stat, sys
from datetime import timedelta
from pathlib import Path
from holdfast.checkpoint.errors import StoreDenied
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted, listed

folder = Path(sys.argv[1])
if os.getuid() == 0:  # permissions mean nothing to root
    os.chown(folder, 65534, 65534)
    os.chdir(folder)
    os.setgid(65534)
    os.setuid(65534)

def allow(mode):
    for path in [Path("store"), *Path("store").rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222 if mode == "read" else path.stat().st_mode | 0o200)

async def refused(call):
    try:
        await call
    except StoreDenied as error:
        assert "right" in str(error), error
    else:
        raise AssertionError("it was not refused")

async def main():
    store = FileStore("store")
    await store.open()
    claim = await begun(store, await enlisted(store))
    await store.append(claim, a_write(1, b"saved"))
    await store.close()  # what it has open it may go on writing to
    allow("read")
    for each in (store, FileStore("store")):
        await each.open()
        assert await bodies_of(each) == [b"begin", b"saved"]
        assert await listed(each) == ["run-1"]
        await refused(each.append(claim, a_write(2, b"refused")))
        await refused(each.create(a_run("run-2")))
        await refused(each.settle(claim, Ending(status=Status.DONE)))
        await refused(each.claim("run-1", "thief", steal=True))
        await refused(each.remove("run-1", claim=claim))
    await refused(FileStore("store/runs/new").open())
    allow("write")
    await store.append(claim, a_write(2, b"allowed"))
    assert await bodies_of(store) == [b"begin", b"saved", b"allowed"]
    await store.close()
    await each.close()

asyncio.run(main())
print("went on")
"""


def test_a_folder_that_may_only_be_read_is_read_and_says_what_to_do(tmp_path: Path) -> None:
    with traversable(list(tmp_path.parents)):
        done = subprocess.run(
            [sys.executable, "-c", _DENIED, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


async def test_a_folder_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        await store.create(a_run())
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        with pytest.raises(StoreUnavailable, match="is gone"):
            await store.create(a_run("run-2"))
        with pytest.raises(StoreUnavailable):
            [record async for record in store.records()]
        (tmp_path / "elsewhere").rename(tmp_path / "store")
        await store.create(a_run("run-2"))


class SlowDisk(Disk):
    """Its syncs wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.waiting = threading.Event()

    def sync(self, fd: int) -> None:
        if not self.go.is_set():
            self.waiting.set()
        assert self.go.wait(60)
        super().sync(fd)


async def test_a_slow_disk_does_not_hold_up_the_event_loop(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with opened(tmp_path / "store", disk) as store:
        claim = await begun(store, await enlisted(store))
        disk.go.clear()
        save = asyncio.ensure_future(store.append(claim, a_write(1, b"more")))
        assert await asyncio.to_thread(disk.waiting.wait, 60)
        assert not save.done()
        assert await bodies_of(store) in ([b"begin"], [b"begin", b"more"])
        disk.go.set()
        await save


class MeetingDisk(Disk):
    """No sync of a journal ends before so many are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting: threading.Barrier | None = None

    def sync(self, fd: int) -> None:
        if self.meeting is not None:
            self.meeting.wait(60)
        super().sync(fd)


async def test_saves_of_different_runs_are_synced_side_by_side(tmp_path: Path) -> None:
    disk = MeetingDisk()
    async with opened(tmp_path / "store", disk) as store:
        worker = await enlisted(store)
        claims = [await begun(store, worker, a_run(f"run-{n}")) for n in range(8)]
        disk.meeting = threading.Barrier(len(claims))
        for seq in (1, 2, 3):
            await asyncio.gather(*(store.append(claim, a_write(seq, b"%d" % seq)) for claim in claims))
        disk.meeting = None
        for n in range(8):
            assert await bodies_of(store, f"run-{n}") == [b"begin", b"1", b"2", b"3"]


async def test_a_save_that_is_cancelled_ends_before_its_caller_does(tmp_path: Path) -> None:
    disk = SlowDisk()
    async with opened(tmp_path / "store", disk) as store:
        claim = await begun(store, await enlisted(store))
        disk.go.clear()
        save = asyncio.ensure_future(store.append(claim, a_write(1, b"more")))
        assert await asyncio.to_thread(disk.waiting.wait, 60)
        save.cancel()
        done, _ = await asyncio.wait([save], timeout=0.05)
        assert not done, "the write is under way, and nobody waits for it"
        disk.go.set()
        with pytest.raises(asyncio.CancelledError):
            await save
        assert await bodies_of(store) == [b"begin", b"more"]


async def test_a_run_that_another_process_does_not_let_go_of_is_unavailable(tmp_path: Path) -> None:
    slow = SlowDisk()
    async with opened(tmp_path / "store", slow) as holder:
        claim = await begun(holder, await enlisted(holder))
        await holder.create(a_run("free"))
        other = FileStore(tmp_path / "store", patience=timedelta(milliseconds=50))
        await other.open()
        slow.go.clear()
        save = asyncio.ensure_future(holder.append(claim, a_write(1, b"more")))
        assert await asyncio.to_thread(slow.waiting.wait, 60)
        with pytest.raises(StoreUnavailable, match="another process"):
            await other.claim("run-1", "thief", steal=True)
        records: list[RunRecord] = [record async for record in other.records()]
        assert [record.run_id for record in records] == ["run-1", "free"], "who only reads does not wait"
        assert [taken.run_id for taken in await other.claim_next("thief", agents=["agent"], limit=5)] == ["free"]
        slow.go.set()
        await save
        assert (await other.claim("run-1", "thief", steal=True)).token > claim.token
        await other.close()
