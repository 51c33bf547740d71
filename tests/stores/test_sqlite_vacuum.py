"""The size of the file: what the transcripts need, and not much more for long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.store import iter_runs
from holdfast.stores.sqlite import SqliteStore, vacuum
from holdfast.testing.store_processes.store_process import StoreProcess
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    load_bodies,
    make_append,
    make_entries,
    make_run,
)

KILOBYTE = bytes(range(256)) * 4


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _rows(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path))
    try:
        count = connection.execute(f"SELECT count(*) FROM {table}").get
        assert isinstance(count, int)
        return count
    finally:
        connection.close()


async def _until_swept(path: Path) -> None:
    """Each opening and closing sweeps for a while: a busy machine needs more of them."""
    for _ in range(100):
        async with opened(path):
            pass
        if not _rows(path, "garbage"):
            return
    raise AssertionError("the removed journals are still there")


@pytest.mark.parametrize("size", [300, 1024, 2048, 3000])
async def test_the_file_is_hardly_larger_than_the_transcript(tmp_path: Path, size: int) -> None:
    path = tmp_path / "runs.db"
    count = 3_000_000 // size
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        for first in range(1, count, 50):
            await store.append(claim, make_append(first, *[b"x" * size] * 50))
        assert (await store.load("run-1")).record.size >= count * size - 50 * size
    assert path.stat().st_size <= 1.3 * count * size


async def test_runs_side_by_side_take_no_more_room_than_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(50)]
        for seq in range(1, 61):
            await asyncio.gather(*(store.append(claim, make_append(seq, KILOBYTE)) for claim in claims))
    assert path.stat().st_size <= 1.3 * 50 * 60 * len(KILOBYTE)


async def test_the_room_of_a_removed_run_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(20)]
        for seq in range(1, 301):
            await asyncio.gather(*(store.append(claim, make_append(seq, KILOBYTE)) for claim in claims))
    full = path.stat().st_size
    async with opened(path) as store:
        for claim in claims[1:]:
            await store.remove(claim.run_id, claim=claim)
    await _until_swept(path)
    assert _rows(path, "segments") == 301
    assert path.stat().st_size < full / 4
    async with opened(path) as store:
        assert await load_bodies(store, "run-0") == [b"begin", *[KILOBYTE] * 300]


async def test_the_room_of_a_rewritten_journal_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        seq = 1
        for _ in range(20):
            await store.append(claim, make_append(seq, *[KILOBYTE] * 200))
            await store.append(claim, make_append(seq + 200, b"compacted", rewrite=True))
            seq += 201
        assert await load_bodies(store) == [b"compacted"]
    await _until_swept(path)
    assert _rows(path, "segments") == 1
    assert path.stat().st_size < 2_000_000


async def test_room_is_given_back_while_the_store_is_open_and_no_run_writes(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        for first in range(1, 5000, 200):
            await store.append(claim, make_append(first, *[KILOBYTE] * 200))
        await store.remove("run-1", claim=claim)
        async with asyncio.timeout(60):
            while path.stat().st_size > 1_500_000:
                await store.wait_for_change(timedelta(milliseconds=20))


async def test_a_removal_cut_short_by_a_kill_is_finished_later(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    factory = "holdfast.stores.from_url:store_from_url"
    for _ in range(20):
        async with StoreProcess(factory, f"sqlite:{path}") as store:
            worker = await add_worker(store)
            claim = await create_claimed(store, worker)
            for seq in range(1, 600):
                await store.append(claim, Append(entries=make_entries(seq, b"x" * 100), progress=b""))
            kept = await create_claimed(store, worker, make_run("kept"))
            await store.remove("run-1", claim=claim)
            await store.child.kill()
        if cut_short := _rows(path, "garbage"):
            break
        async with opened(path) as store:
            await store.remove("kept")
    assert cut_short == 1, "the kill has to land while the journal is being deleted"
    assert _rows(path, "segments") > 1
    async with opened(path) as again:
        with pytest.raises(RunNotFound):
            await again.load("run-1")
        assert await load_bodies(again, "kept") == [b"begin"]
        assert (await again.load("kept")).record.token == kept.token
    await _until_swept(path)
    assert _rows(path, "segments") == 1


async def test_saves_continue_while_journals_are_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(6)]
        for seq in range(1, 101):
            await asyncio.gather(*(store.append(claim, make_append(seq, *[KILOBYTE])) for claim in claims))
        for gone in range(3):
            await store.remove(f"run-{gone}", claim=claims[gone])
            for seq in range(101 + 20 * gone, 121 + 20 * gone):
                await asyncio.gather(*(store.append(claim, make_append(seq, b"more")) for claim in claims[3:]))
        for n in range(3, 6):
            assert await load_bodies(store, f"run-{n}") == [b"begin", *[KILOBYTE] * 100, *[b"more"] * 60]


async def test_the_log_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "_CHECKPOINT_BYTES", 50 * 16384)
    path, log = tmp_path / "runs.db", tmp_path / "runs.db-wal"
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        for n in range(20):
            await store.create(make_run(f"other-{n}"))
        listing = iter_runs(store, page_size=5)
        await anext(listing)
        for seq in range(1, 500):
            await store.append(claim, make_append(seq, KILOBYTE))
        assert log.stat().st_size < 8 * 50 * 16384, "a listing that was begun must not hold the log"
        assert len([record async for record in listing]) == 20
    assert not log.exists()
