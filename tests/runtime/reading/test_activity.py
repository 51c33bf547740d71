"""What `read_activity` counts as stuck, as waiting and as complete, run by run."""

from datetime import timedelta

import pytest

from holdfast.checkpoint.codec import encode, encode_begin
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.workers import WorkerIdentity, this_process
from holdfast.core.run.info import RunInfo
from holdfast.runtime.reading.activity import Activity, read_activity
from holdfast.runtime.reading.run_summary import QUIET_AFTER
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

WAITING, PARKED, INTERRUPTED, RUNNING = RunStatus.WAITING, RunStatus.PARKED, RunStatus.INTERRUPTED, RunStatus.RUNNING


class Fleet:
    """A store with two workers, `w` and `gone`, and their runs. The second one leaves."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)

    async def open(self) -> "Fleet":
        await self.store.open()
        for name in ("w", "gone"):
            await self.store.register_worker(WorkerIdentity(worker_id=name, process=this_process(), agents=("b",)))
        return self

    async def add(self, run_id: str, status: RunStatus, *, owner: str = "w", steps: int = 0, strikes: int = 0) -> None:
        info = RunInfo(run_id=run_id, agent_name="a")
        entries = [Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))]
        await self.store.create(NewRun.create(info, encode(Progress(steps=steps)), entries))
        claim = await self.store.claim(run_id, owner)
        if status is not RUNNING:
            await self.store.release(claim, Release(status=status, reason=f"left as {status}", strikes=strikes))

    async def read(self) -> Activity:
        return await read_activity(self.store, self.clock.now())


async def test_a_run_is_stuck_if_it_is_parked_quiet_or_fails_again_and_again() -> None:
    fleet = await Fleet().open()
    await fleet.add("quiet", RUNNING, steps=5)
    await fleet.clock.advance(timedelta(seconds=1))
    await fleet.add("not-quiet-yet", RUNNING, steps=7)
    await fleet.clock.advance(QUIET_AFTER)
    await fleet.add("busy", RUNNING, steps=3)
    await fleet.add("orphan", RUNNING, owner="gone", steps=2)
    await fleet.store.deregister_worker("gone")
    for strikes in (0, 1, 2):
        await fleet.add(f"strikes-{strikes}", INTERRUPTED, strikes=strikes)
    await fleet.add("parked", PARKED)
    await fleet.add("waiting", WAITING)
    await fleet.add("done", RunStatus.DONE)
    activity = await fleet.read()
    stuck = {run.run_id: (run.steps, run.strikes) for run in activity.stuck}
    assert set(stuck) == {"quiet", "orphan", "strikes-2", "parked"}
    assert (stuck["quiet"], stuck["orphan"], stuck["strikes-2"]) == ((5, 1), (2, 1), (0, 2))
    assert activity.stuck[0].run_id == "quiet", "the one that was written first"
    assert activity.steps == {"quiet": 5, "not-quiet-yet": 7, "busy": 3}
    assert sum(group.count for group in activity.reasons) == len(stuck) + 1, "and the one that waits"
    assert (activity.is_partial, activity.ended, activity.total) == (False, 1, 10)
    assert [(each.worker_id, each.alive, each.runs, each.agents) for each in activity.workers] == [
        ("w", True, 3, ["a", "b"]),
        ("gone", False, 1, ["a"]),
    ]
    assert activity.workers[0].last_write == fleet.clock.now()


@pytest.mark.parametrize("status", [RUNNING, INTERRUPTED, PARKED, WAITING])
async def test_at_most_1000_runs_of_a_status_are_read_and_more_are_reported(status: RunStatus) -> None:
    fleet = await Fleet().open()
    for number in range(1_000):
        await fleet.add(f"r{number}", status)
    assert not (await fleet.read()).is_partial
    await fleet.add("more", status)
    assert (await fleet.read()).is_partial
