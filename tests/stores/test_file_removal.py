"""A run and the runs it started go together, whenever the process that removes them is killed."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, StoreUnavailable
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.locks import locked
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted, listed

FAMILY = ["parent", "Child/1", "grandchild"]

_REMOVE = """
import asyncio, os, signal, sys
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import Disk

class DeadlyDisk(Disk):
    left = None

    def step(self, name, *args):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return getattr(super(), name)(*args)

for name in ("create", "open", "open_or_create", "write", "cut", "sync", "sync_folder", "link", "replace", "unlink"):
    setattr(DeadlyDisk, name, lambda self, *args, name=name: self.step(name, *args))

async def main():
    disk = DeadlyDisk()
    store = FileStore(sys.argv[1], disk=disk)
    await store.open()
    disk.left = int(sys.argv[2])
    await store.remove("parent")
    disk.left = None
    await store.close()

asyncio.run(main())
print("removed")
"""


@asynccontextmanager
async def opened(folder: Path, patience: timedelta = timedelta(seconds=10)) -> AsyncIterator[FileStore]:
    store = FileStore(folder, durability="process", patience=patience)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _new_family(store: FileStore) -> None:
    await store.create(a_run("parent"))
    await store.create(a_run("Child/1", parent_run_id="parent"))
    await store.create(a_run("grandchild", parent_run_id="Child/1"))
    await store.request_cancel("grandchild")


async def _killed_at(folder: Path, operation: int) -> bool:
    """Whether the process that removes the parent was killed at that operation; else it has done all."""
    command = [sys.executable, "-c", _REMOVE, str(folder), str(operation)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    assert (process.returncode, said) in [(-signal.SIGKILL, b""), (0, b"removed\n")]
    return process.returncode != 0


def _left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_a_family_is_removed_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """By the next opening in every other round; else by a process that was there all the time, when it claims."""
    outcomes = []
    for operation in range(100):
        folder = tmp_path / str(operation)
        async with opened(folder) as witness:
            await witness.create(a_run("bystander", agent_name="other"))
            empty = _left(folder)
            await _new_family(witness)
            killed = await _killed_at(folder, operation)
            if operation % 2:
                await witness.claim_next(await enlisted(witness), agents=["nobody"], limit=1)
            else:
                async with opened(folder):
                    pass
            left = await listed(witness)
            assert left in (["bystander"], ["bystander", *FAMILY]), f"killed at operation {operation}"
            outcomes.append(len(left))
            await witness.remove("parent")
            # The lock file of a run that is gone waits for the next run of that name.
            passing = ("workers/", "temporary/", "locks/parent.lock")
            files = [name for name in _left(folder) if not name.startswith(passing)]
            assert files == empty, f"killed at operation {operation}"
        if not killed:
            break
    assert outcomes[0] == 4, "no kill came before anything was done"
    assert outcomes[-2] == 1, "no kill came after it was promised"
    assert outcomes == sorted(outcomes, reverse=True)


async def _promised(folder: Path, store: FileStore) -> None:
    """A family whose removal was promised by a process that is gone."""
    await _new_family(store)
    created = (await store.load("parent")).record.created_at
    promise = {"run_id": "parent", "created_at": created.isoformat()}
    (folder / "removals" / "parent").write_text(json.dumps(promise))


async def test_who_makes_a_run_anew_keeps_the_promise_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await _promised(tmp_path, store)
        await store.create(a_run("parent", b"a second life"))
        assert await listed(store) == ["parent"]
        assert await bodies_of(store, "parent") == [b"a second life"]


async def test_a_run_whose_removal_was_promised_cannot_be_claimed(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await _promised(tmp_path, store)
        assert await store.claim_next(await enlisted(store), agents=["agent"], limit=9) == ()
        assert await listed(store) == []


async def test_a_promise_that_a_power_cut_brought_back_harms_no_later_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await _promised(tmp_path, store)
        promise = (tmp_path / "removals" / "parent").read_bytes()
        await store.remove("parent")
        await _new_family(store)
        (tmp_path / "removals" / "parent").write_bytes(promise)
    async with opened(tmp_path) as store:
        assert await listed(store) == FAMILY
        assert not list((tmp_path / "removals").iterdir())


@pytest.mark.parametrize("promise", [b"please", b'{"run_id":"p\xffrent","created_at":null}'], ids=["words", "spoilt"])
async def test_what_else_lies_among_the_promises_is_left_alone(tmp_path: Path, promise: bytes) -> None:
    async with opened(tmp_path) as store:
        await _new_family(store)
        (tmp_path / "removals" / "parent").write_bytes(promise)
        async with opened(tmp_path):
            pass
        assert await listed(store) == FAMILY
        [claim] = await store.claim_next(await enlisted(store), agents=["agent"], limit=1)
        assert claim.run_id == "parent"


async def test_a_child_that_another_process_does_not_let_go_of_keeps_its_family(tmp_path: Path) -> None:
    async with opened(tmp_path, patience=timedelta(milliseconds=50)) as store:
        await store.create(a_run("parent"))
        await store.create(a_run("child", parent_run_id="parent"))
        with locked(tmp_path / "locks" / "child.lock", Disk(), patience=0):
            with pytest.raises(StoreUnavailable, match="run child"):
                await store.remove("parent")
            assert await listed(store) == ["parent", "child"]
            assert not list((tmp_path / "removals").iterdir())
        await store.remove("parent")
        assert await listed(store) == []


async def test_whoever_drives_a_child_of_a_removed_run_has_lost_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        claim: Claim = await begun(store, await enlisted(store), a_run("parent"))
        child = await begun(store, claim.worker_id, a_run("child", parent_run_id="parent"))
        await store.append(child, a_write(1, b"one"))
        await store.remove("parent", claim=claim)
        with pytest.raises(ClaimLost):
            await store.append(child, a_write(2, b"two"))


async def test_a_child_that_is_removed_leaves_no_note_with_its_parent(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await _new_family(store)
        await store.remove("Child/1")
        assert await listed(store) == ["parent"]
        assert not list((tmp_path / "children").iterdir())
