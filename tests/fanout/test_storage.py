"""Where a checkpoint is stored: atomic files, their lock, and the run of a store."""

import asyncio
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.probe_store import ProbeStore

from holdfast.checkpoint.record import Release, RunStatus
from holdfast.fanout import CorruptCheckpoint, FanoutBusy, IncrementalSaver, PartialResponse, build, load, save
from holdfast.fanout.atomic_file import remove_file, write_atomically
from holdfast.fanout.storage import CheckpointFile, CheckpointRun
from holdfast.stores.memory import MemoryStore


class SystemCalls:
    """The order in which files were synced and renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self._fsync, self._replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, fd: int) -> None:
        self.made.append("fsync folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"fsync {os.fstat(fd).st_size}")
        self._fsync(fd)

    def replace(self, source: Path, target: Path) -> None:
        self.made.append("replace")
        self._replace(source, target)


def test_a_write_is_synced_before_and_after_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = SystemCalls(monkeypatch)
    write_atomically(tmp_path / "file", b"12345")
    assert calls.made == ["fsync 5", "replace", "fsync folder"]
    calls.made.clear()
    remove_file(tmp_path / "file")
    assert calls.made == ["fsync folder"]


def test_new_files_and_folders_are_private(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_atomically(tmp_path / "one" / "two" / "file", b"prompts and answers")
    finally:
        os.umask(umask)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("one", "one/two", "one/two/file")]
    assert modes == [0o700, 0o700, 0o600]


async def test_opening_removes_the_unfinished_writes_of_the_dead_only(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    old, new = (tmp_path / f".checkpoint.json.{digit * 16}.tmp" for digit in "12")
    for temporary in (old, new):
        temporary.touch()
    an_hour_ago = time.time() - 3600
    os.utime(old, (an_hour_ago, an_hour_ago))
    place = CheckpointFile(path)
    await place.open()
    await place.close()
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.parametrize("taken", [False, True])
async def test_a_lock_on_an_unlinked_file_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """The previous owner removes the lock file between the open and the lock of the next. A third may be quicker."""
    path = tmp_path / "checkpoint.json"
    previous, following, third = (CheckpointFile(path) for _ in range(3))
    await previous.open()
    lock, meanwhile = fcntl.flock, [True]

    def lock_late(fd: int, operation: int) -> None:
        if meanwhile and meanwhile.pop():
            fd_of_previous, previous._lock_fd = previous._lock_fd, None
            assert fd_of_previous is not None
            previous._lock_path.unlink()
            os.close(fd_of_previous)
            if taken:
                third._acquire_lock()
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    if taken:
        with pytest.raises(FanoutBusy):
            await following.open()
    else:
        await following.open()
        with pytest.raises(FanoutBusy):
            await third.open()
    await following.close()
    await third.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_checkpoint_that_cannot_be_read_is_not_kept_locked(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text("not JSON")
    one, other = CheckpointFile(path), CheckpointFile(path)
    for place in (one, other):
        with pytest.raises(CorruptCheckpoint):
            await place.open()
    await one.close()
    assert list(tmp_path.iterdir()) == [path]


def encoded(*models: str) -> bytes:
    return msgspec.json.encode(build("why?", models, [], fanout_id="fan"))


async def test_a_checkpoint_that_was_removed_can_be_written_anew() -> None:
    store = MemoryStore()
    await store.open()
    place = CheckpointRun(store, "fan")
    for models in ("ab", "cd"):
        assert await place.open() is None
        await asyncio.to_thread(place.write, encoded(*models))
        await asyncio.to_thread(place.write, encoded(*models))
        stored = await store.load("fan")
        assert [entry.seq for entry in stored.entries] == [2, 3]
        await asyncio.to_thread(place.write, None)
        await asyncio.to_thread(place.write, None)
    await place.close()
    await store.close()


async def test_a_parked_checkpoint_is_opened() -> None:
    store = MemoryStore()
    await store.open()
    place = CheckpointRun(store, "fan")
    await asyncio.to_thread(place.write, encoded("a"))
    assert place._claim is not None
    await store.release(place._claim, Release(status=RunStatus.PARKED, reason="poison"))
    assert await CheckpointRun(store, "fan").open() is not None


async def test_a_run_that_is_no_checkpoint_is_let_go_of() -> None:
    from holdfast import Agent, App, Reply

    async def model(messages: Any, tools: Any) -> Reply:
        return Reply(text="x")

    store = MemoryStore()
    await store.open()
    async with App([Agent(name="a", model=model)], store) as app:
        await app.submit("a", "why?", run_id="fan")
        for _ in range(2):
            with pytest.raises(CorruptCheckpoint, match="not a fan-out"):
                await CheckpointRun(store, "fan").open()


async def test_a_closed_checkpoint_leaves_no_worker_and_can_be_closed_again() -> None:
    probe = ProbeStore(MemoryStore())
    await probe.open()
    place = CheckpointRun(probe, "fan")
    await place.open()
    await asyncio.to_thread(place.write, encoded("a"))
    await place.close()
    await place.close()
    assert [call for call in probe.calls if "worker" in call or call == "release"] == [
        "register_worker",
        "release",
        "deregister_worker",
    ]
    assert (await probe.inner.get_record("fan")).status is RunStatus.INTERRUPTED


async def test_a_saver_goes_on_with_the_checkpoint_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    built = build("why?", ["a", "b"], [PartialResponse(model_id="a", text="1")], fanout_id="f")
    assert built is not None
    save(path, built)
    saver = IncrementalSaver(
        path, "why?", ["a", "b"], snapshots=built.snapshots, fanout_id="f", timestamp=built.timestamp
    )
    assert await saver.update(PartialResponse(model_id="b", text="2"))
    kept = load(path)
    assert kept is not None
    assert (kept.fanout_id, kept.timestamp, kept.verbose) == ("f", built.timestamp, False)
    assert [each.text for each in kept.snapshots] == ["1", "2"]
    await saver.clear()
    assert list(tmp_path.iterdir()) == []
