"""The file store keeps the journals it saves to open, and sees what others do to them even so."""

import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, RunDamaged
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.stores.file import FileStore
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted, record_of

needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not show open files")


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[FileStore]:
    store = FileStore(folder, durability="process")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _saving(store: FileStore, run_id: str = "run-1") -> Claim:
    """The claim on a run whose journal the store has open."""
    claim = await begun(store, await enlisted(store), a_run(run_id))
    await store.append(claim, a_write(1, b"one"))
    return claim


def _open_files(folder: Path) -> list[str]:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return [link.removeprefix(f"{folder}/") for link in links if link.startswith(f"{folder}/")]


def _open_in_a_forked_child(folder: Path) -> int:
    child = os.fork()
    if not child:
        os._exit(len(_open_files(folder)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def test_what_another_store_wrote_is_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path) as other:
        claim = await _saving(store)
        await other.request_cancel("run-1")
        await store.append(claim, a_write(2, b"two"))
        await other.append(claim, a_write(3, b"three"))
        await store.append(claim, a_write(4, b"four"))
        assert await bodies_of(other) == [b"begin", b"one", b"two", b"three", b"four"]
        assert (await record_of(other)).cancel_requested


async def test_a_run_that_another_store_took_away_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path) as other:
        claim = await _saving(store)
        thief = await other.claim("run-1", await enlisted(other), steal=True)
        with pytest.raises(ClaimLost):
            await store.append(claim, a_write(2, b"late"))
        await other.append(thief, a_write(2, b"two"))
        assert await bodies_of(store) == [b"begin", b"one", b"two"]


async def test_a_run_that_was_removed_and_made_again_is_lost(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path) as other:
        claim = await _saving(store)
        await other.remove("run-1", claim=claim)
        with pytest.raises(ClaimLost):
            await store.append(claim, a_write(2, b"late"))
        claim = await _saving(store)
        await other.remove("run-1", claim=claim)
        again = await begun(other, await enlisted(other))
        with pytest.raises(ClaimLost):
            await store.append(claim, a_write(2, b"late"))
        await other.append(again, a_write(1, b"second life"))
        assert await bodies_of(store) == [b"begin", b"second life"]


async def test_a_journal_that_was_rewritten_elsewhere_is_opened_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path) as other:
        claim = await _saving(store)
        await other.append(claim, a_write(2, b"compacted", replace=True))
        await store.append(claim, a_write(3, b"three"))
        await store.append(claim, a_write(4, b"all", replace=True))
        await store.append(claim, a_write(5, b"five"))
        assert await bodies_of(other) == [b"all", b"five"]


async def test_a_journal_that_was_spoilt_meanwhile_is_not_written_to(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        claim = await _saving(store)
        journal = tmp_path / "runs" / "run-1.jsonl"
        spoilt = journal.read_bytes()[:-9] + b"spoilt!!\n"
        journal.write_bytes(spoilt)
        with pytest.raises(RunDamaged):
            await store.append(claim, a_write(2, b"two"))
        assert journal.read_bytes() == spoilt


async def test_a_lock_file_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    """Else two processes would lock two files, and write at the same time."""
    async with opened(tmp_path) as store:
        claim = await _saving(store)
        (tmp_path / "locks" / "run-1.lock").unlink()
        await store.append(claim, a_write(2, b"two"))
        assert (tmp_path / "locks" / "run-1.lock").exists()


@needs_proc
async def test_files_are_open_only_while_the_store_saves_to_their_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await _saving(store, "run-1")
        done, gone = await _saving(store, "run-2"), await _saving(store, "run-3")
        lost = await _saving(store, "run-4")
        assert len(_open_files(tmp_path)) == 8
        await store.settle(done, Ending(status=Status.DONE))
        await store.remove("run-3", claim=gone)
        async with opened(tmp_path) as other:
            await other.claim("run-4", "thief", steal=True)
        with pytest.raises(ClaimLost):
            await store.append(lost, a_write(2, b"late"))
        assert sorted(_open_files(tmp_path)) == ["locks/run-1.lock", "runs/run-1.jsonl"]
    assert _open_files(tmp_path) == []


@needs_proc
async def test_many_runs_do_not_use_up_the_files_that_a_process_may_open(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, before[1]))
    try:
        async with opened(tmp_path) as store:
            claims = [await _saving(store, f"run-{n}") for n in range(50)]
            for n, claim in enumerate(claims):
                await store.append(claim, a_write(2, b"two"))
                assert len(_open_files(tmp_path)) <= 48
                assert await bodies_of(store, f"run-{n}") == [b"begin", b"one", b"two"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@needs_proc
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it is only looked at what a fork leaves open
async def test_a_child_that_is_forked_has_none_of_them(tmp_path: Path) -> None:
    """Else it would keep the lock of a parent that is killed in mid-save."""
    async with opened(tmp_path) as store:
        claim = await _saving(store)
        assert len(_open_files(tmp_path)) == 2
        assert _open_in_a_forked_child(tmp_path) == 0
        await store.append(claim, a_write(2, b"two"))
        assert len(_open_files(tmp_path)) == 2
