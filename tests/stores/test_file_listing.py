"""A listing reads what changed since the last one, and only that."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending, RunRecord
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_write, begun, enlisted, listed

RUNS = 50


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    store = FileStore(tmp_path, durability="process")
    await store.open()
    yield store
    await store.close()


def _grow_old(folder: Path) -> None:
    """As if nothing had changed for a minute."""
    for journal in (folder / "runs").iterdir():
        os.utime(journal, ns=(0, time.time_ns() - 60_000_000_000))


async def _listed_record(store: FileStore, run_id: str = "run-1") -> RunRecord:
    [record] = [record async for record in store.records() if record.run_id == run_id]
    return record


def _read_by_this_process() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="the system does not count reads")
async def test_a_journal_that_did_not_change_is_read_once(store: FileStore, tmp_path: Path) -> None:
    for n in range(RUNS):
        await store.create(a_run(f"run-{n}"))
    _grow_old(tmp_path)
    costs = []
    for _ in range(3):
        before = _read_by_this_process()
        assert len(await listed(store)) == RUNS
        costs.append(_read_by_this_process() - before)
    assert costs[0] > RUNS * 500
    assert max(costs[1:]) < costs[0] / 10
    assert await store.claim_next(await enlisted(store), agents=["nobody"], limit=1) == ()


async def test_what_another_store_did_is_seen(store: FileStore, tmp_path: Path) -> None:
    claims = [await begun(store, await enlisted(store), a_run(f"run-{n}")) for n in range(3)]
    _grow_old(tmp_path)
    assert await listed(store) == ["run-0", "run-1", "run-2"]
    other = FileStore(tmp_path, durability="process")
    await other.open()
    await other.append(claims[0], a_write(1, b"one", progress=b"further"))
    await other.settle(claims[1], Ending(status=Status.FAILED, reason="over"))
    await other.remove("run-2", claim=claims[2])
    await other.create(a_run("run-2"))
    await other.close()
    assert (await _listed_record(store, "run-0")).progress == b"further"
    assert (await _listed_record(store, "run-1")).status is Status.FAILED
    assert (await _listed_record(store, "run-2")).status is Status.QUEUED
    await store.remove("run-2")
    assert await listed(store) == ["run-0", "run-1"]


async def test_an_owner_that_died_since_the_last_listing_is_dead(store: FileStore, tmp_path: Path) -> None:
    worker = await enlisted(store)
    await begun(store, worker)
    _grow_old(tmp_path)
    assert (await _listed_record(store)).owner_alive
    await store.discharge(worker)
    assert not (await _listed_record(store)).owner_alive


async def test_a_run_that_takes_the_place_of_another_at_once_is_seen(store: FileStore) -> None:
    """The file system may give it the same inode, length and time."""
    for n in range(50):
        claim = await begun(store, await enlisted(store))
        assert (await _listed_record(store)).token == claim.token, f"round {n}"
        await store.remove("run-1", claim=claim)


async def test_listings_at_the_same_time_are_all_whole(store: FileStore, tmp_path: Path) -> None:
    for n in range(RUNS):
        await store.create(a_run(f"run-{n}"))
    _grow_old(tmp_path)
    for listing in await asyncio.gather(*(listed(store) for _ in range(20))):
        assert len(listing) == RUNS
