"""Power cuts at every point of a recorded session of a SQLite store."""

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

import apsw
import pytest
from tests.stores.sqlite_power_loss import KEPT, Operation, Platter, Recording, recorded

from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.workers import Claim, WorkerIdentity, this_process
from holdfast.stores.sqlite import SqliteStore, database, heartbeat, vacuum

#: How many images of each way to lose writes are looked at. More of them find rarer errors.
ROUNDS = int(os.environ.get("HOLDFAST_POWER_LOSS_ROUNDS", "1"))
IMAGES_PER_ROUND = 60

#: What a run is: its status and the bodies of its entries. `None`: not there.
State = tuple[RunStatus, tuple[bytes, ...]] | None


@dataclass
class History:
    """What was asked for one run: the states it goes through, and where in the recording each began and was safe."""

    states: list[State] = field(default_factory=lambda: [None])
    begun: list[int] = field(default_factory=list)
    safe: list[int] = field(default_factory=list)

    def allowed(self, cut: int) -> list[State]:
        """What may be there after a cut: nothing older than what was acknowledged, nothing that was not asked for."""
        acknowledged = sum(where <= cut for where in self.safe)
        asked = sum(where <= cut for where in self.begun)
        return self.states[acknowledged : asked + 1]


@dataclass
class Day:
    store: SqliteStore
    recording: Recording
    histories: dict[str, History] = field(default_factory=dict)

    async def change(self, run_id: str, state: State, call: Awaitable[object]) -> None:
        history = self.histories.setdefault(run_id, History())
        history.states.append(state)
        history.begun.append(len(self.recording.done))
        await call
        self.recording.mark(f"{run_id} is safe")
        history.safe.append(len(self.recording.done))


def _entries(first: int, bodies: list[bytes]) -> list[Entry]:
    return [Entry(seq=seq, kind=EntryKind.MESSAGE, body=body) for seq, body in enumerate(bodies, first)]


async def _one_run(day: Day, run_id: str, chance: random.Random) -> None:
    """Created, written to, rewritten, and ended in one way or another."""
    store = day.store
    bodies = [f"{run_id} begins".encode()]
    run = NewRun(run_id=run_id, agent_name="agent", info=b"", progress=b"", entries=_entries(0, bodies))
    held: list[Claim] = []

    async def create() -> None:
        claim = await store.create(run, worker_id="worker")
        assert claim is not None
        held.append(claim)

    await day.change(run_id, (RunStatus.RUNNING, tuple(bodies)), create())
    seq = 1
    for n in range(chance.randint(4, 10)):
        new = [f"{run_id} {n} ".encode() + chance.randbytes(chance.choice((10, 700, 2000, 40_000)))]
        if chance.random() < 0.3:
            new.append(b"and another")
        replace = chance.random() < 0.15
        bodies = new if replace else bodies + new
        write = Append(entries=_entries(seq, new), progress=b"%d" % n, rewrite=replace, step_finished=True)
        await day.change(run_id, (RunStatus.RUNNING, tuple(bodies)), store.append(held[0], write))
        seq += len(new)
    end = chance.choice((RunStatus.PARKED, RunStatus.FAILED, None, RunStatus.RUNNING))
    if end is None:
        await day.change(run_id, None, store.remove(run_id, claim=held[0]))
    elif end is not RunStatus.RUNNING:
        ending = Release(status=end, entries=_entries(seq, [b"the end"]), retention=timedelta(hours=1))
        await day.change(run_id, (end, (*bodies, b"the end")), store.release(held[0], ending))


async def _a_day(
    folder: Path, *, durability: Literal["full", "process"] = "full", lies: bool = False
) -> tuple[list[Operation], dict[str, History]]:
    """Two openings of a store with some runs at once in each; what was done to the disk, and what was asked for."""
    folder.mkdir()
    histories: dict[str, History] = {}
    with recorded(lies=lies) as recording:
        for opening in range(2):
            store = SqliteStore(folder / "runs.db", durability=durability)
            await store.open()
            await store.register_worker(WorkerIdentity(worker_id="worker", process=this_process()))
            day = Day(store, recording, histories)
            chances = [random.Random(f"{opening} {n}") for n in range(6)]
            await asyncio.gather(*(_one_run(day, f"run-{opening}-{n}", chance) for n, chance in enumerate(chances)))
            await store.close()
    return recording.done, histories


async def _wrong(image: Path, histories: dict[str, History], cut: int) -> list[str]:
    """What is not as it has to be in a store that was found after a cut."""
    store = SqliteStore(image / "runs.db")
    try:
        await store.open()
    except CheckpointError as exc:
        return [f"broken: the store does not open: {exc}"]
    wrong = []
    for run_id, history in histories.items():
        found: State = None
        try:
            stored = await store.load(run_id)
            found = (stored.record.status, tuple(entry.body for entry in stored.entries))
        except RunNotFound:
            pass
        except CheckpointError as exc:
            wrong.append(f"broken: {exc}")
            continue
        if found not in history.allowed(cut):
            known = found in history.states
            wrong.append(f"{run_id} was lost" if known else f"broken: {run_id} is in a state that never was")
    await store.close()
    return wrong + _damage(image / "runs.db")


def _damage(path: Path) -> list[str]:
    connection = apsw.Connection(str(path))
    try:
        check = connection.pragma("integrity_check")
    except apsw.Error as exc:
        check = str(exc)
    finally:
        connection.close()
    return [] if check == "ok" else [f"broken: {check}"]


async def _wrong_after_cuts(
    done: list[Operation], histories: dict[str, History], folder: Path, images: int, seed: str
) -> Counter[str]:
    """Look at this many images, with cuts all over the recording, and count what is wrong by its first word."""
    chance = random.Random(seed)
    cuts = sorted(chance.choices(range(len(done) + 1), k=images))
    platter, at, wrong = Platter(), 0, Counter[str]()
    for cut in cuts:
        for operation in done[at:cut]:
            platter.do(operation)
        at = cut
        image = folder / "image"
        platter.leave(image, chance.choice(KEPT), chance)
        wrong.update(fault.partition(":")[0].split()[-1] for fault in await _wrong(image, histories, cut))
        shutil.rmtree(image)
    return wrong


@pytest.fixture(autouse=True)
def _small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a short day sees checkpoints and starts its log over."""
    monkeypatch.setattr(vacuum, "_CHECKPOINT_BYTES", 25 * 16384)


async def test_a_power_cut_loses_nothing_acknowledged_and_leaves_nothing_half_written(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    done, histories = await _a_day(tmp_path / "store")
    starts = sum(
        operation.what == "write" and operation.name.endswith("-wal") and not operation.offset for operation in done
    )
    assert starts > 4, "the day has to see a log that starts over and over"
    record_property("oracle", f"{ROUNDS * IMAGES_PER_ROUND} disk images of each way to lose writes")
    for number in range(ROUNDS):
        assert not await _wrong_after_cuts(done, histories, tmp_path, IMAGES_PER_ROUND, f"round {number}")


async def test_without_full_durability_a_power_cut_takes_back_but_breaks_nothing(tmp_path: Path) -> None:
    done, histories = await _a_day(tmp_path / "store", durability="process")
    wrong = await _wrong_after_cuts(done, histories, tmp_path, IMAGES_PER_ROUND, "process")
    assert wrong["lost"]
    assert not wrong["broken"]


async def test_the_simulation_goes_red_without_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_sync(connection: apsw.Connection, wanted: bool) -> None:
        connection.pragma("synchronous", "OFF")

    for module in (database, vacuum, heartbeat):
        monkeypatch.setattr(module, "set_synchronous", never_sync)
    done, histories = await _a_day(tmp_path / "store")
    wrong = await _wrong_after_cuts(done, histories, tmp_path, IMAGES_PER_ROUND, "off")
    assert wrong["lost"]
    assert wrong["broken"]


async def test_the_simulation_goes_red_on_a_disk_that_lies(tmp_path: Path) -> None:
    done, histories = await _a_day(tmp_path / "store", lies=True)
    assert (await _wrong_after_cuts(done, histories, tmp_path, IMAGES_PER_ROUND, "lies"))["lost"]
