"""A run that cannot be used, for whatever reason, keeps no other run from going on."""

import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.stores.another_user import traversable

from holdfast.checkpoint.errors import StoreError, StoreUnavailable
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import AnyPath, Disk
from holdfast.checkpoint.stores.file.locks import locked
from holdfast.testing.store_suite.subject import a_run, begun, enlisted, listed


@asynccontextmanager
async def opened(folder: Path, disk: Disk | None = None) -> AsyncIterator[FileStore]:
    store = FileStore(folder, disk=disk, patience=timedelta(milliseconds=50))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class SpoiltDisk(Disk):
    """Some journals cannot be opened for changing; and after so many writes it refuses all."""

    def __init__(self) -> None:
        super().__init__()
        self.spoilt: set[str] = set()
        self.code = errno.EIO
        self.writes_left: int | None = None

    def open(self, path: AnyPath) -> int:
        if Path(path).stem in self.spoilt:
            raise OSError(self.code, os.strerror(self.code), str(path))
        return super().open(path)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                raise OSError(self.code, os.strerror(self.code))
        super().write(fd, data, offset)


async def _claimed(store: FileStore, worker: str) -> list[str]:
    return [claim.run_id for claim in await store.claim_next(worker, agents=["agent"], limit=9)]


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EPERM], ids=errno.errorcode.get)
async def test_a_run_that_cannot_be_claimed_keeps_no_other_from_it(
    tmp_path: Path, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SpoiltDisk()
    async with opened(tmp_path / "store", disk) as store:
        for n in range(4):
            await store.create(a_run(f"run-{n}"))
        worker = await enlisted(store)
        disk.spoilt, disk.code = {"run-0", "run-2"}, code
        assert await _claimed(store, worker) == ["run-1", "run-3"]
        assert await _claimed(store, worker) == []
        assert [Path(journal).name for journal in caplog.text.split() if journal.endswith(".jsonl")] == [
            "run-0.jsonl",
            "run-2.jsonl",
        ], "each is named once"
        disk.spoilt = set()
        assert await _claimed(store, worker) == ["run-0", "run-2"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EMFILE], ids=errno.errorcode.get)
async def test_claims_that_were_taken_before_the_disk_refused_are_handed_over(tmp_path: Path, code: int) -> None:
    taken = []
    for writes in range(12):
        disk = SpoiltDisk()
        async with opened(tmp_path / str(writes), disk) as store:
            for n in range(4):
                await store.create(a_run(f"run-{n}"))
            worker = await enlisted(store)
            disk.writes_left, disk.code = writes, code
            try:
                claims = await _claimed(store, worker)
            except StoreError:
                claims = []
            disk.writes_left = None
            assert claims == [record.run_id async for record in store.records() if record.owner == worker]
            assert sorted([*claims, *await _claimed(store, worker)]) == [f"run-{n}" for n in range(4)]
            taken.append(len(claims))
    assert (taken[0], taken[-1]) == (0, 4)
    assert {1, 2, 3} <= set(taken)


async def test_a_counter_that_another_process_holds_is_not_taken_for_nothing_to_claim(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        for n in range(3):
            await store.create(a_run(f"run-{n}"))
        worker = await enlisted(store)
        with locked(tmp_path / "store" / "tokens", Disk(), patience=0):
            for call in (
                store.claim_next(worker, agents=["agent"], limit=9),
                store.claim("run-0", worker),
                store.create(a_run("new"), worker_id=worker),
            ):
                with pytest.raises(StoreUnavailable, match=r"counter .*tokens has been held by another process"):
                    await call
        assert await listed(store) == ["run-0", "run-1", "run-2"]
        assert len(await _claimed(store, worker)) == 3


async def test_a_counter_that_cannot_be_used_is_not_taken_for_nothing_to_claim(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        await store.create(a_run())
        worker = await enlisted(store)
        (tmp_path / "store" / "tokens").rename(tmp_path / "aside")
        (tmp_path / "store" / "tokens").mkdir()
        with pytest.raises(StoreUnavailable, match="tokens"):
            await _claimed(store, worker)
        (tmp_path / "store" / "tokens").rmdir()
        (tmp_path / "aside").rename(tmp_path / "store" / "tokens")
        assert await _claimed(store, worker) == ["run-1"]


async def test_a_run_that_cannot_be_purged_keeps_no_other_from_it(tmp_path: Path) -> None:
    disk = SpoiltDisk()
    async with opened(tmp_path / "store", disk) as store:
        worker = await enlisted(store)
        for n in range(4):
            claim = await begun(store, worker, a_run(f"run-{n}"))
            await store.settle(claim, Ending(status=Status.DONE, keep=timedelta(0)))
        disk.spoilt = {"run-0"}
        with locked(tmp_path / "store" / "locks" / "run-2.lock", Disk(), patience=0):
            assert await store.purge() == 2
        assert await listed(store) == ["run-0", "run-2"]
        disk.spoilt = set()
        assert await store.purge() == 2


_ANOTHER_USERS = """
import asyncio, concurrent.futures.thread, encodings.idna, os, sys
from datetime import timedelta
from pathlib import Path
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_worker, begun, enlisted, listed

folder = Path(sys.argv[1], "store")

async def as_root():
    store = FileStore(folder)
    await store.open()
    worker = a_worker()
    await store.enlist(worker)
    await store.create(a_run("secret"))
    await store.create(a_run("child", parent_run_id="secret"))
    done = await begun(store, worker.worker_id, a_run("done child", parent_run_id="secret"))
    await store.settle(done, Ending(status=Status.DONE, keep=timedelta(0)))
    await begun(store, worker.worker_id, a_run("driven"))
    await store.request_cancel("secret")
    await store.create(a_run("free"))
    await store.create(a_run("promised"))
    await store.create(a_run("promised child", parent_run_id="promised"))
    created = (await store.load("promised")).record.created_at.isoformat()
    (folder / "removals" / "promised").write_text('{"run_id":"promised","created_at":"%s"}' % created)
    await store.close()
    return worker.worker_id

async def as_another(driver):
    store = FileStore(".")
    await store.open()
    worker = await enlisted(store)
    assert await listed(store) == ["child", "done child", "driven", "free", "promised"]
    [driven] = [record async for record in store.records() if record.run_id == "driven"]
    assert driven.owner_alive
    assert [claim.run_id for claim in await store.claim_next(worker, agents=["agent"], limit=9)] == ["free"]
    assert await store.claim_next(worker, agents=["agent"], limit=9) == ()
    assert await store.cancels(worker) == ()
    assert await store.purge() == 0, "the parent may go on, and has to meet its child again"
    problems = (await store.inspect()).problems
    assert sorted("secret" in problem for problem in problems) == [False, True], problems
    await store.close()

driver = asyncio.run(as_root())
for path in [folder, *folder.rglob("*")]:
    os.chown(path, 65534, 65534)
[child] = (folder / "runs").glob("promised-child*")
for path in (folder / "runs" / "secret.jsonl", folder / "workers" / f"{driver}.json", child):
    os.chown(path, 0, 0)
    path.chmod(0o600)
os.chdir(folder)
os.setgid(65534)
os.setuid(65534)
asyncio.run(as_another(driver))
print("went on")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_another_user_made_for_itself_keeps_no_run_from_going_on(tmp_path: Path) -> None:
    with traversable(list(tmp_path.parents)):
        tmp_path.chmod(0o755)
        command = [sys.executable, "-c", _ANOTHER_USERS, str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr
