"""Whenever the power is cut, every acknowledged save is there afterwards, and nothing half-written is read."""

import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.stores.file_power_loss import Killed, Operation, Platter, RecordingDisk, lay_out

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending, StoredRun
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_write

#: Random images for each moment; `HOLDFAST_POWER_LOSS_ROUNDS=50` looks harder.
ROUNDS = int(os.environ.get("HOLDFAST_POWER_LOSS_ROUNDS", "2"))

Snapshot = dict[str, StoredRun]

#: Runs that go together.
FAMILY = {"parent", "child", "grandchild"}


@dataclass
class Moment:
    """After so many operations the store was seen like this; acknowledged or not."""

    operations: int
    snapshot: Snapshot
    acknowledged: bool


@dataclass
class Workload:
    """Calls of a store, one after another, and what was acknowledged when."""

    store: FileStore
    disk: RecordingDisk
    moments: list[Moment] = field(default_factory=list)

    async def call(self, call: Awaitable[object]) -> object:
        """Do it, and note what is acknowledged from now on."""
        result = await call
        await self.note(acknowledged=True)
        return result

    async def call_and_die(self, call: Awaitable[object]) -> None:
        """Do it and be killed between the write and the sync."""
        self.disk.kill_at_sync = True
        with pytest.raises(Killed):
            await call
        await self.note(acknowledged=False)

    async def note(self, *, acknowledged: bool) -> None:
        self.moments.append(Moment(len(self.disk.done), await _snapshot(self.store), acknowledged))


async def _snapshot(store: FileStore) -> Snapshot:
    return {record.run_id: await store.load(record.run_id) async for record in store.records()}


async def everything_a_store_does(work: Workload) -> None:
    store = work.store
    first = await work.call(store.create(a_run("first", b'{"json":1}', b"\xff no json"), worker_id="worker"))
    assert isinstance(first, Claim)
    await work.call(store.append(first, a_write(2, b'{"a message":"' + b"x" * 300 + b'"}', progress=b"1")))
    await work.call(store.append(first, a_write(3, b"three", b"four", progress=b"2", finished_step=True)))
    parent = await work.call(store.create(a_run("parent"), worker_id="worker"))
    assert isinstance(parent, Claim)
    await work.call(store.create(a_run("child", parent_run_id="parent")))
    await work.call(store.create(a_run("grandchild", parent_run_id="child")))
    await work.call_and_die(store.append(first, a_write(5, b"never acknowledged " * 9)))
    stolen = await work.call(store.claim("first", "thief", steal=True))
    assert isinstance(stolen, Claim)
    next_seq = (await store.load("first")).record.next_seq
    await work.call(store.request_cancel("first"))
    await work.call(store.append(stolen, a_write(next_seq, b"compacted", progress=b"3", replace=True)))
    await work.call(store.append(stolen, a_write(next_seq + 1, b"after it", progress=b"4")))
    await work.call(store.settle(stolen, Ending(status=Status.FAILED, reason="over")))
    await work.call(store.remove("parent", claim=parent))
    await work.call(store.remove("first"))
    second = await work.call(store.create(a_run("parent", b"a second life"), worker_id="worker"))
    assert isinstance(second, Claim)
    await work.call(store.remove("parent", claim=second))
    await work.call(store.create(a_run("last"), worker_id="worker"))


@asynccontextmanager
async def _opened(folder: Path, disk: RecordingDisk | None = None) -> AsyncIterator[FileStore]:
    store = FileStore(folder, durability="process") if disk is None else FileStore(folder, disk=disk)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _recorded(
    folder: Path, leave_out: Callable[[RecordingDisk, Operation], bool] = lambda disk, operation: False
) -> Workload:
    disk = RecordingDisk(folder, leave_out)
    async with _opened(folder, disk) as store:
        work = Workload(store, disk)
        await everything_a_store_does(work)
    return work


def _anything(operation: Operation) -> bool:
    return operation.what != "open"


async def _check_cuts(
    work: Workload, scratch: Path, rounds: int, *, cut_after: Callable[[Operation], bool] = _anything
) -> int:
    """How many images were looked at. Fails at the first that lost or made up something."""
    platter, seen = Platter(), set()
    for count, operation in enumerate(work.disk.done, 1):
        platter.do(operation)
        if not cut_after(operation):
            continue
        allowed, token = _expected(work.moments, count)
        for n, how in enumerate(["nothing", "everything", *["some"] * rounds]):
            image = platter.image(how, random.Random(f"{count} {n}"))
            key = (len(allowed), token, *image.items())
            if key not in seen:
                seen.add(key)
                folder = scratch / f"image {len(seen)}"
                lay_out(image, folder)
                await _check(folder, allowed, token, where=f"cut after {count} {operation}, {how} kept")
                shutil.rmtree(folder)
    return len(seen)


def _expected(moments: list[Moment], count: int) -> tuple[list[Snapshot], int]:
    """What may be there after a cut at that point, and the largest token that was acknowledged before."""
    allowed: list[Snapshot] = [{}]
    token = 0
    for moment in moments:
        if moment.operations > count:
            allowed.append(moment.snapshot)
            break
        allowed = [moment.snapshot] if moment.acknowledged else [*allowed, moment.snapshot]
        token = max([token, *(run.record.token for run in moment.snapshot.values())])
    return allowed, token


async def _check(image: Path, allowed: list[Snapshot], token: int, *, where: str) -> None:
    try:
        async with _opened(image) as store:
            found = await _snapshot(store)
            for run_id in {run_id for snapshot in allowed for run_id in snapshot} | set(found):
                assert found.get(run_id) in [snapshot.get(run_id) for snapshot in allowed], f"{where}: {run_id}"
            families = [FAMILY & snapshot.keys() for snapshot in allowed]
            assert FAMILY & found.keys() in families, f"{where}: a family was torn apart"
            await _check_that_it_goes_on(store, token, where)
    except CheckpointError as error:
        raise AssertionError(f"{where}: {error}") from error


async def _check_that_it_goes_on(store: FileStore, token: int, where: str) -> None:
    for run_id, stored in (await _snapshot(store)).items():
        claim = await store.claim(run_id, "after the cut", statuses=frozenset(Status), steal=True)
        assert claim.token > token, where
        await store.append(claim, a_write(stored.record.next_seq, b"goes on"))
        assert (await store.load(run_id)).entries[-1].body == b"goes on", where
    new = await store.create(a_run("new"), worker_id="after the cut")
    assert new is not None
    assert new.token > token, where
    await store.remove("parent")
    assert set(await _snapshot(store)) <= {"first", "last", "new"}, f"{where}: a child outlived its parent"


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where images are laid out: in memory if possible, as nothing of them has to last."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


async def test_no_power_cut_loses_what_was_acknowledged(tmp_path: Path, scratch: Path) -> None:
    work = await _recorded(tmp_path / "store")
    assert await _check_cuts(work, scratch, ROUNDS) > 300


LEFT_OUT: dict[str, Callable[[RecordingDisk, Operation], bool]] = {
    "after an append": lambda disk, sync: sync.what == "sync" and sync.path.startswith("runs/"),
    "of a new journal": lambda disk, sync: sync.what == "sync" and sync.path.startswith("temporary/"),
    "of the names of journals": lambda disk, sync: (sync.what, sync.path) == ("sync folder", "runs"),
    "of a promise to remove a family": lambda disk, sync: (sync.what, sync.path) == ("sync folder", "removals"),
    "of the names of children": lambda disk, sync: (sync.what, sync.path) == ("sync folder", "children"),
    "of the folder itself": lambda disk, sync: (sync.what, sync.path) == ("sync folder", "."),
    "of the tokens": lambda disk, sync: (sync.what, sync.path) == ("sync", "tokens"),
}


@pytest.mark.parametrize("leave_out", LEFT_OUT.values(), ids=LEFT_OUT.keys())
async def test_a_sync_that_is_left_out_is_noticed(
    tmp_path: Path, scratch: Path, leave_out: Callable[[RecordingDisk, Operation], bool]
) -> None:
    work = await _recorded(tmp_path / "store", leave_out)
    assert work.disk.left_out > 0
    with pytest.raises(AssertionError):
        await _check_cuts(work, scratch, rounds=10)


def _append(operation: Operation) -> bool:
    return operation.what == "write" and operation.path.startswith("runs/")


async def test_building_on_a_write_that_was_not_synced_is_noticed(tmp_path: Path, scratch: Path) -> None:
    def at_first(disk: RecordingDisk, sync: Operation) -> bool:
        return sync.what == "sync" and sync.path.startswith("runs/") and disk.last_to(sync.path) == "open"

    work = await _recorded(tmp_path / "store", at_first)
    assert work.disk.left_out == 1
    with pytest.raises(AssertionError, match="damaged"):
        await _check_cuts(work, scratch, rounds=60, cut_after=_append)
