"""Many models report at once, one thread writes."""

import asyncio
import errno
import fcntl
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.probe_store import ProbeStore

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.fanout import (
    FanoutBusy,
    FanoutError,
    IncrementalSaver,
    ModelResponse,
    PartialResponse,
    Snapshot,
    build,
    load,
)
from holdfast.fanout.checkpoint import FanoutCheckpoint
from holdfast.fanout.storage import CheckpointFile, CheckpointRun
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore

IDS = [f"m{number}" for number in range(32)]
TIMEOUT = timedelta(seconds=60)


def partial(model: str, turn: int) -> PartialResponse:
    return PartialResponse(model_id=model, text=str(turn))


class Gate:
    """A place whose writes wait until they are let through, or fail."""

    def __init__(self) -> None:
        self.written: list[FanoutCheckpoint | None] = []
        self.arrived = threading.Semaphore(0)
        self.let_through = threading.Semaphore(0)
        self.fails = False

    async def open(self) -> None:
        return None

    def write(self, data: bytes | None) -> None:
        self.arrived.release()
        assert self.let_through.acquire(timeout=60)
        if self.fails:
            raise OSError("no room")
        self.written.append(None if data is None else msgspec.json.decode(data, type=FanoutCheckpoint))

    async def close(self) -> None: ...


def texts(checkpoint: FanoutCheckpoint | None) -> dict[str, str]:
    assert checkpoint is not None
    return {each.model_id: each.text for each in checkpoint.snapshots}


def test_updates_during_a_flush_share_the_next_one() -> None:
    gate = Gate()
    saver = IncrementalSaver(gate, "why?", IDS)
    first = saver.update(partial("m0", 1))
    assert gate.arrived.acquire(timeout=60)
    rest = [saver.update(partial(model, turn)) for turn in (2, 3) for model in IDS]
    gate.let_through.release(2)
    assert first.wait(TIMEOUT)
    assert all(flushed.wait(TIMEOUT) for flushed in rest)
    assert len(gate.written) == 2
    assert texts(gate.written[1]) == dict.fromkeys(IDS, "3")
    saver.close()
    assert len(gate.written) == 2


def test_a_wait_for_a_flush_may_have_a_limit() -> None:
    gate = Gate()
    saver = IncrementalSaver(gate, "why?", ["a"])
    pending = saver.update(partial("a", 1))
    with pytest.raises(TimeoutError):
        pending.wait(timedelta(0))
    gate.let_through.release(10)
    assert pending.wait()
    saver.close()


def test_a_saver_that_was_not_closed_does_not_keep_its_process_alive(tmp_path: Path) -> None:
    program = """
import sys
from holdfast.fanout import IncrementalSaver, PartialResponse
saver = IncrementalSaver(sys.argv[1], "why?", ["a"])
assert saver.update(PartialResponse(model_id="a")).wait()
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "c.json")], check=True, timeout=60)


async def test_a_finished_fanout_is_kept_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    saver = IncrementalSaver(path, "why?", ["a"], keep_finished=True)
    assert await saver.mark_completed(ModelResponse(model_id="a", text="because"))
    kept = load(path)
    assert kept is not None
    assert [each.status for each in kept.snapshots] == ["completed"]
    await saver.clear()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FanoutError, match="closed"):
        saver.update(partial("a", 1))


def test_a_failed_flush_is_logged_and_the_next_one_carries_it(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    saver = IncrementalSaver(gate, "why?", ["a", "b"])
    gate.let_through.release(10)
    gate.fails = True
    assert not saver.update(partial("a", 1)).wait(TIMEOUT)
    assert "no room" in caplog.text
    gate.fails = False
    assert saver.update(partial("b", 1)).wait(TIMEOUT)
    assert texts(gate.written[-1]) == {"a": "1", "b": "1"}
    gate.fails = True
    assert not saver.update(partial("a", 2)).wait(TIMEOUT)
    gate.fails = False
    saver.close()
    assert texts(gate.written[-1]) == {"a": "2", "b": "1"}


async def test_a_task_that_is_cancelled_while_it_waits_disturbs_nobody() -> None:
    gate = Gate()
    saver = IncrementalSaver(gate, "why?", ["a", "b"])
    flushed = saver.update(partial("a", 1))

    async def wait() -> bool:
        return await flushed

    impatient, patient = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    gate.let_through.release(10)
    assert await patient
    await saver.aclose()


def test_what_has_ended_stays_ended_and_the_file_goes_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    saver = IncrementalSaver(path, "why?", ["b", "a"], True)
    assert saver.mark_completed(ModelResponse(model_id="a", text="because")).wait(TIMEOUT)
    assert saver.update(partial("a", 9)).wait(TIMEOUT)
    kept = load(path)
    assert kept is not None
    assert (kept.prompt, kept.adapter_ids, kept.verbose) == ("why?", ("b", "a"), True)
    assert [(each.model_id, each.status, each.text) for each in kept.snapshots] == [
        ("b", "interrupted", ""),
        ("a", "completed", "because"),
    ]
    assert saver.mark_completed(ModelResponse(model_id="b", error="no")).wait(TIMEOUT)
    assert list(tmp_path.iterdir()) == []
    saver.close()


def test_a_model_that_is_not_among_them_is_refused(tmp_path: Path) -> None:
    saver = IncrementalSaver(tmp_path / "checkpoint.json", "why?", ["a"])
    with pytest.raises(FanoutError, match="not a model of this fan-out"):
        saver.update(partial("b", 1))
    saver.close()
    with pytest.raises(FanoutError, match="closed"):
        saver.update(partial("a", 1))


def test_an_update_may_name_the_model_and_give_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    saver = IncrementalSaver(path, "why?", ["a", "b", "c"])
    under_way = Snapshot(model_id="a", text="hm", interrupted=True)
    assert saver.update("a", under_way).wait(TIMEOUT)
    assert saver.update("b", ModelResponse(model_id="b", text="because")).wait(TIMEOUT)
    assert saver.update("c", partial("c", 1)).wait(TIMEOUT)
    kept = load(path)
    assert kept is not None
    assert kept.snapshots[0] == under_way
    assert [each.status for each in kept.snapshots] == ["interrupted", "completed", "interrupted"]
    with pytest.raises(FanoutError, match="is of 'a', not of 'b'"):
        saver.update("b", under_way)
    with pytest.raises(FanoutError, match="give a snapshot"):
        saver.update("b")  # type: ignore[call-overload]
    saver.close()


async def test_a_store_keeps_it_as_one_small_run(tmp_path: Path) -> None:
    store = store_from_url(f"sqlite:{tmp_path / 'runs.db'}")
    await store.open()
    saver = IncrementalSaver(store, "why?", ["a", "b"], fanout_id="f1")
    for turn in range(5):
        assert await saver.update(partial("a", turn))
    size = (await store.load("f1")).record.size
    assert await saver.update(partial("a", 5))
    assert (await store.load("f1")).record.size == size
    with pytest.raises(FanoutBusy):
        await CheckpointRun(store, "f1").open()
    await saver.aclose()
    place = CheckpointRun(store, "f1")
    kept = await place.open()
    assert texts(kept) == {"a": "5", "b": ""}
    assert kept is not None
    again = IncrementalSaver(place, "why?", ["a", "b"], snapshots=kept.snapshots, fanout_id="f1")
    assert await again.mark_completed(ModelResponse(model_id="a", text="because"))
    assert await again.mark_completed(ModelResponse(model_id="b", text="why not"))
    await again.aclose()
    await place.close()
    assert [record async for record in store.list_runs()] == []
    await store.close()


async def test_a_file_belongs_to_one_at_a_time(tmp_path: Path) -> None:
    one, other = (CheckpointFile(tmp_path / "checkpoint.json") for _ in range(2))
    files = os.listdir("/proc/self/fd")
    await one.open()
    with pytest.raises(FanoutBusy):
        await other.open()
    await one.close()
    await other.open()
    await other.close()
    assert os.listdir("/proc/self/fd") == files
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_a_checkpoint_whose_letting_go_goes_wrong_is_let_go_of_even_so(how: str) -> None:
    probe = ProbeStore(MemoryStore())
    await probe.open()
    place = CheckpointRun(probe, "fan")
    assert await place.open() is None
    kept = build("why?", ["a"], [], fanout_id="fan")
    await asyncio.to_thread(place.write, msgspec.json.encode(kept))
    if how == "fails":
        probe.fail("release", StoreUnavailable("the database does not answer"))
        await place.close()
    else:
        reached = asyncio.Event()

        async def hold(method: str) -> None:
            if method == "release":
                reached.set()
                await asyncio.Event().wait()

        probe.before = hold
        closing = asyncio.create_task(place.close())
        await reached.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    probe.before = None
    assert await CheckpointRun(probe, "fan").open() == kept


async def test_a_file_system_without_locks_is_not_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FanoutError, match="No locks available") as told:
        await CheckpointFile(tmp_path / "checkpoint.json").open()
    assert not isinstance(told.value, FanoutBusy)
