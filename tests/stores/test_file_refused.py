"""A save that the disk refused, and did not let go of either, may be made again all the same."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, StoreError
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.testing.store_suite.subject import a_write, begun, bodies_of, enlisted, listed, record_of


@asynccontextmanager
async def opened(folder: Path, disk: Disk | None = None) -> AsyncIterator[FileStore]:
    store = FileStore(folder, disk=disk)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class WornDisk(Disk):
    """While it is worn, it writes and does not sync, and what was written cannot be cut off."""

    worn = False
    #: It wears out after so many syncs.
    syncs_left: int | None = None

    def sync(self, fd: int) -> None:
        if self.syncs_left is not None:
            self.syncs_left -= 1
            self.worn = self.syncs_left < 0
        if self.worn:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)

    def cut(self, fd: int, length: int) -> None:
        if self.worn:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().cut(fd, length)


@asynccontextmanager
async def _worn_out_in_a_save(folder: Path) -> AsyncIterator[tuple[FileStore, Claim]]:
    """A store whose disk is well again after it refused a save, as a whole, that is in the file as a whole."""
    disk = WornDisk()
    async with opened(folder, disk) as store:
        claim = await begun(store, await enlisted(store))
        await store.append(claim, a_write(1, b"one"))
        disk.worn = True
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.append(claim, a_write(2, b"two"))
        async with opened(folder) as other:
            assert await bodies_of(other) == [b"begin", b"one", b"two"], "it was cut off: this proves nothing"
        disk.worn = False
        yield store, claim


async def test_a_save_that_was_refused_and_could_not_be_cut_off_may_be_made_again(tmp_path: Path) -> None:
    async with _worn_out_in_a_save(tmp_path / "store") as (store, claim):
        await store.append(claim, a_write(2, b"two", b"three"))
        await store.append(claim, a_write(4, b"four"))
        assert await bodies_of(store) == [b"begin", b"one", b"two", b"three", b"four"]


async def test_after_a_save_that_was_refused_and_could_not_be_cut_off_the_run_may_be_settled(tmp_path: Path) -> None:
    async with _worn_out_in_a_save(tmp_path / "store") as (store, claim):
        await store.settle(claim, Ending(status=Status.INTERRUPTED, entries=a_write(2, b"other").entries))
        assert await bodies_of(store) == [b"begin", b"one", b"other"]


async def test_a_save_that_was_refused_is_not_shown_where_it_was_made(tmp_path: Path) -> None:
    async with _worn_out_in_a_save(tmp_path / "store") as (store, _):
        assert [record.next_seq async for record in store.records()] == [2]
    async with _worn_out_in_a_save(tmp_path / "again") as (store, _):
        assert await bodies_of(store) == [b"begin", b"one"]


async def test_a_refused_save_that_another_has_built_on_is_not_cut_off(tmp_path: Path) -> None:
    async with _worn_out_in_a_save(tmp_path / "store") as (store, claim), opened(tmp_path / "store") as other:
        thief = await other.claim("run-1", await enlisted(other), steal=True)
        with pytest.raises(ClaimLost):
            await store.append(claim, a_write(2, b"two"))
        await other.append(thief, a_write(3, b"three"))
        assert await bodies_of(store) == [b"begin", b"one", b"two", b"three"]


async def test_of_a_refused_save_nothing_is_left_for_a_later_run_of_that_name(tmp_path: Path) -> None:
    async with _worn_out_in_a_save(tmp_path / "store") as (store, _), opened(tmp_path / "store") as other:
        await other.remove("run-1", claim=await other.claim("run-1", await enlisted(other), steal=True))
        assert await listed(store) == []
        assert not (tmp_path / "store" / "locks" / "run-1.lock").exists()
        claim = await begun(store, await enlisted(store))
        await store.append(claim, a_write(1, b"a second life"))
        assert await bodies_of(store) == [b"begin", b"a second life"]


async def test_a_claim_that_was_refused_and_could_not_be_cut_off_is_taken_later(tmp_path: Path) -> None:
    """Else the run would be running under a live worker that does not drive it."""
    disk = WornDisk()
    async with opened(tmp_path / "store", disk) as store:
        worker = await enlisted(store)
        first = await begun(store, worker)
        await store.settle(first, Ending(status=Status.INTERRUPTED))
        disk.syncs_left = 1  # of the token
        assert await store.claim_next(worker, agents=["agent"], limit=1) == ()
        assert disk.worn
        assert (await record_of(store)).status is Status.RUNNING, "it was cut off: this proves nothing"
        disk.worn, disk.syncs_left = False, None
        [claim] = await store.claim_next(worker, agents=["agent"], limit=1)
        await store.append(claim, a_write(1, b"one"))
