"""Opening and closing a file store: each is seen through to its end, and one waits for the other."""

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import AnyPath, Disk
from holdfast.testing.store_suite.subject import a_worker, a_write, begun, bodies_of, enlisted, listed


class SlowDisk(Disk):
    """Its syncs wait until they are let go, and then one may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.waiting = threading.Event()
        self.broken = False

    def sync(self, fd: int) -> None:
        self._wait()
        super().sync(fd)

    def sync_folder(self, path: AnyPath) -> None:
        self._wait()
        super().sync_folder(path)

    def _wait(self) -> None:
        if not self.go.is_set():
            self.waiting.set()
        assert self.go.wait(60)
        if self.broken:
            self.broken = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def slowed_down(self) -> None:
        assert await asyncio.to_thread(self.waiting.wait, 60)


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-file")]


def _open_files(folder: Path) -> list[str]:
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return [link for link in links if os.path.exists(link) and os.readlink(link).startswith(str(folder))]


async def _under_way(*tasks: asyncio.Task[None]) -> None:
    """They are given every chance to end, and do not."""
    done, _ = await asyncio.wait(tasks, timeout=0.05)
    assert not done


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not show open files")
async def test_a_close_that_is_cancelled_is_seen_through_and_another_one_waits_for_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go.set()
    store = FileStore(tmp_path, disk=disk)
    await store.open()
    claim = await begun(store, await enlisted(store))
    await store.append(claim, a_write(1, b"one"))
    disk.go.clear()
    save = asyncio.create_task(store.append(claim, a_write(2, b"two")))
    await disk.slowed_down()
    first, second = asyncio.create_task(store.close()), asyncio.create_task(store.close())
    await _under_way(first, second)
    for _ in range(3):
        first.cancel()
        second.cancel()
        await _under_way(first, second)
    disk.go.set()
    ends = await asyncio.gather(save, first, second, return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), asyncio.CancelledError, asyncio.CancelledError]
    assert (_threads(), _open_files(tmp_path)) == ([], [])
    await store.open()
    assert await bodies_of(store) == [b"begin", b"one", b"two"]
    await store.close()


async def test_who_enlists_while_the_store_is_closed_leaves_no_heart_behind(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go.set()
    store = FileStore(tmp_path, disk=disk)
    await store.open()
    disk.go.clear()
    enlisting = asyncio.create_task(store.enlist(a_worker()))
    await disk.slowed_down()
    closing = asyncio.create_task(store.close())
    await _under_way(enlisting, closing)
    disk.go.set()
    await asyncio.gather(enlisting, closing)
    assert _threads() == []


async def test_who_opens_a_store_that_is_being_opened_waits_for_it(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = FileStore(tmp_path / "store", disk=disk)
    first, second = asyncio.create_task(store.open()), asyncio.create_task(store.open())
    await disk.slowed_down()
    await _under_way(first, second)
    disk.go.set()
    await second
    assert await listed(store) == []
    await first
    await store.close()
    assert _threads() == []


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_who_waits_for_an_opening_that_comes_to_nothing_opens_the_store_itself(tmp_path: Path, how: str) -> None:
    disk = SlowDisk()
    store = FileStore(tmp_path / "store", disk=disk)
    first = asyncio.create_task(store.open())
    await disk.slowed_down()
    second = asyncio.create_task(store.open())
    await _under_way(first, second)
    if how == "cancelled":
        first.cancel()
    disk.broken = how == "failed"
    disk.go.set()
    [end] = await asyncio.gather(first, return_exceptions=True)
    assert type(end) is (asyncio.CancelledError if how == "cancelled" else StoreUnavailable)
    await second
    assert await listed(store) == []
    await store.close()
    assert _threads() == []


async def test_a_store_that_is_closed_while_it_is_opened_is_closed(tmp_path: Path) -> None:
    disk = SlowDisk()
    store = FileStore(tmp_path / "store", disk=disk)
    opening = asyncio.create_task(store.open())
    await disk.slowed_down()
    closing = asyncio.create_task(store.close())
    await _under_way(opening, closing)
    closing.cancel()
    await _under_way(opening, closing)
    disk.go.set()
    ends = await asyncio.gather(opening, closing, return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), asyncio.CancelledError]
    assert _threads() == []
