"""The order of claims, and the liveness of workers, where the SQLite store decides them."""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import apsw
import msgspec
import pytest

from holdfast.checkpoint.errors import RunBusy
from holdfast.checkpoint.record import Release, RunFilter, RunStatus
from holdfast.checkpoint.workers import WorkerIdentity, find_process, is_process_alive, this_process
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.stores.sqlite import SqliteStore, claiming
from holdfast.stores.sqlite.database import statement
from holdfast.testing import ManualClock
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    get_run_ids,
    list_run_ids,
    make_run,
    make_worker,
)

HOUR = timedelta(hours=1)


@asynccontextmanager
async def opened(
    path: Path, *, clock: Clock = SYSTEM_CLOCK, dead_after: timedelta = timedelta(seconds=30)
) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock=clock, lease_timeout=dead_after)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def elsewhere() -> WorkerIdentity:
    """A worker whose process cannot be seen from here."""
    worker = make_worker()
    return msgspec.structs.replace(worker, process=msgspec.structs.replace(worker.process, host="elsewhere"))


# -- whose turn it is --------------------------------------------------------------------------------------------------


async def test_callers_take_turns_over_claims_of_one_run_each(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        for n in range(10):
            await store.create(make_run(f"busy-{n}", caller_id="busy"))
        for n in range(2):
            await store.create(make_run(f"quiet-{n}", caller_id="quiet"))
        worker = await add_worker(store)
        taken = [get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1))[0] for _ in range(6)]
        assert taken == ["busy-0", "quiet-0", "busy-1", "quiet-1", "busy-2", "busy-3"]


async def test_with_more_callers_than_are_looked_at_at_once_no_caller_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 4)
    async with opened(tmp_path / "runs.db") as store:
        callers = ["", *(f"caller-{n:02}" for n in range(10))]
        for n in range(3):
            for caller in callers:
                await store.create(make_run(f"{caller}:{n}", caller_id=caller, agent_name=f"agent-{n % 2}"))
        worker = await add_worker(store)
        served: list[str] = []
        while taken := await store.claim_next(worker, agents=["agent-0", "agent-1"], limit=1):
            served += [claim.run_id.partition(":")[0] for claim in taken]
            if len(served) == 2 * len(callers):
                assert set(served) == set(callers), "the last of them is not starved by the first"
        assert Counter(served) == dict.fromkeys(callers, 3)


async def test_one_claim_takes_the_oldest_of_each_however_many_callers_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 4)
    async with opened(tmp_path / "runs.db") as store:
        for n in range(3):
            for caller in range(9):
                await store.create(make_run(f"{caller}:{n}", caller_id=str(caller)))
        worker = await add_worker(store)
        assert sorted(get_run_ids(await store.claim_next(worker, agents=["agent"], limit=9))) == [
            f"{n}:0" for n in range(9)
        ]
        rest = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=12))
        assert sorted(rest[:9]) == [f"{n}:1" for n in range(9)]
        assert all(run_id.endswith(":2") for run_id in rest[9:])


async def test_what_another_process_left_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 4)
    async with opened(tmp_path / "runs.db") as store, opened(tmp_path / "runs.db") as other:
        names = [f"run-{n}" for n in range(8)]
        for name in names:
            await store.create(make_run(name, caller_id=name))
        worker, another = await add_worker(store), await add_worker(other)
        taken = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=2))
        taken += get_run_ids(await other.claim_next(another, agents=["agent"], limit=4))
        taken += get_run_ids(await store.claim_next(worker, agents=["agent"], limit=4))
        assert sorted(taken) == names


@pytest.mark.parametrize("seed", range(10))
async def test_every_ready_run_is_found_and_given_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 4)
    chance, ready = random.Random(seed), set()
    async with opened(tmp_path / "runs.db") as store, opened(tmp_path / "runs.db") as other:
        gone = await add_worker(store)
        for n in range(40):
            run = make_run(f"run-{n:02}", caller_id=f"{chance.randrange(30):02}", agent_name=chance.choice("AB"))
            if chance.random() < 0.2:
                await (store.create(run) if chance.random() < 0.5 else create_claimed(store, gone, run))
                ready.add(run.run_id)
            else:
                later = Release(status=RunStatus.INTERRUPTED, delay=HOUR)
                await store.release(await create_claimed(store, gone, run), later)
        await store.deregister_worker(gone)
        askers = [(store, await add_worker(store)), (other, await add_worker(other))]
        taken: list[str] = []
        while True:
            asked, worker = chance.choice(askers)
            some = await asked.claim_next(worker, agents=["A", "B"], limit=chance.randint(1, 6))
            if not some:
                break
            taken += get_run_ids(some)
        assert Counter(taken) == Counter(ready)


async def test_a_look_ends_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 2)
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        begins = [await create_claimed(store, worker, make_run(f"run-{n}", caller_id=str(n))) for n in range(4)]
        for claim in begins:
            delay = timedelta(0) if claim.run_id == "run-1" else HOUR
            await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=delay))
        [claim] = await store.claim_next(worker, agents=["agent"], limit=1)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=HOUR))
        # Behind the second caller it begins, and with the second it ends, without a look at fewer than it may.
        async with asyncio.timeout(60):
            assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == []


async def test_the_rest_of_a_priority_comes_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 2)
    async with opened(tmp_path / "runs.db") as store:
        await store.set_limit("agent", "limited", 1)
        for run_id, caller, agent, priority in (
            ("first", "0", "limited", 1), ("no-slot", "1", "limited", 1), ("second", "2", "free", 1),
            ("low", "2", "free", 0),
        ):  # fmt: skip
            await store.create(make_run(run_id, caller_id=caller, agent_name=agent, priority=priority))
        worker = await add_worker(store)
        taken: list[str] = []
        while some := get_run_ids(await store.claim_next(worker, agents=["free", "limited"], limit=2)):
            taken += some  # the first two callers have one slot, and a scan has two of the three callers
        assert taken == ["first", "second", "low"]


async def test_runs_of_dead_workers_are_given_once_by_a_scan_that_begins_in_the_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "_LANES_PER_SCAN", 2)
    async with opened(tmp_path / "runs.db") as store:
        gone = await add_worker(store)
        for n in range(4):
            await create_claimed(store, gone, make_run(f"run-{n}", caller_id=str(n)))
        await store.deregister_worker(gone)
        worker = await add_worker(store)
        first = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1))
        rest = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=4))
        assert (first, sorted(rest)) == (["run-0"], ["run-1", "run-2", "run-3"])


async def test_runs_of_several_dead_workers_and_waiting_ones_are_one_queue(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        gone = [await add_worker(store) for _ in range(3)]
        for n in range(12):
            if n % 4 == 3:
                await store.create(make_run(f"run-{n:02}", caller_id="one"))
            else:
                await create_claimed(store, gone[n % 4], make_run(f"run-{n:02}", caller_id="one"))
        for worker in gone:
            await store.deregister_worker(worker)
        taken = get_run_ids(await store.claim_next(await add_worker(store), agents=["agent"], limit=12))
        assert taken == [f"run-{n:02}" for n in range(12)]


# -- who is alive ------------------------------------------------------------------------------------------------------


async def test_a_worker_that_cannot_be_seen_is_dead_when_its_heartbeat_stands_still(tmp_path: Path) -> None:
    clock = ManualClock()
    await _leave_a_run_of(elsewhere(), tmp_path / "runs.db", clock)
    async with opened(tmp_path / "runs.db", clock=clock) as store:
        other = await add_worker(store)
        assert await list_run_ids(store, RunFilter(interrupted=True)) == []
        await clock.advance(timedelta(seconds=29))
        with pytest.raises(RunBusy):
            await store.claim("run-1", other)
        assert get_run_ids(await store.claim_next(other, agents=["agent"], limit=1)) == []
        assert await list_run_ids(store, RunFilter(interrupted=True)) == []
        await clock.advance(timedelta(seconds=2))
        assert await list_run_ids(store, RunFilter(interrupted=True)) == ["run-1"]
        assert get_run_ids(await store.claim_next(other, agents=["agent"], limit=1)) == ["run-1"]


async def _leave_a_run_of(worker: WorkerIdentity, path: Path, clock: Clock) -> None:
    """As after a crash of that worker."""
    async with opened(path, clock=clock) as store:
        await store.register_worker(worker)
        await create_claimed(store, worker.worker_id)


@pytest.mark.parametrize("where", ["on this host", "elsewhere"])
async def test_a_dead_worker_whose_clock_was_ahead_is_replaced_as_soon_as_any_other(tmp_path: Path, where: str) -> None:
    clock, ahead = ManualClock(), ManualClock(ManualClock().now() + HOUR)
    dead = msgspec.structs.replace(this_process(), started="at another time")
    worker = elsewhere() if where == "elsewhere" else WorkerIdentity(worker_id="dead", process=dead)
    await _leave_a_run_of(worker, tmp_path / "runs.db", ahead)
    async with opened(tmp_path / "runs.db", clock=clock) as store:
        other = await add_worker(store)
        taken = get_run_ids(await store.claim_next(other, agents=["agent"], limit=1))
        if where == "elsewhere":
            assert taken == [], "it has to be watched first"
            await clock.advance(timedelta(seconds=31))
            taken = get_run_ids(await store.claim_next(other, agents=["agent"], limit=1))
        assert taken == ["run-1"]


async def test_a_run_that_a_clock_ahead_has_released_is_taken(tmp_path: Path) -> None:
    ahead = ManualClock(ManualClock().now() + HOUR)
    async with opened(tmp_path / "runs.db", clock=ahead) as store:
        claim = await create_claimed(store, await add_worker(store))
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
    async with opened(tmp_path / "runs.db", clock=ManualClock()) as store:
        taken = await store.claim_next(await add_worker(store), agents=["agent"], limit=1)
        assert get_run_ids(taken) == ["run-1"]


async def test_a_worker_whose_clock_is_ahead_takes_nothing_from_a_live_one(tmp_path: Path) -> None:
    path, clock, ahead = tmp_path / "runs.db", ManualClock(), ManualClock(ManualClock().now() + HOUR)
    worker = elsewhere()
    async with opened(path, clock=clock) as theirs, opened(path, clock=ahead) as store:
        await theirs.register_worker(worker)
        await create_claimed(theirs, worker.worker_id)
        other = await add_worker(store)
        for _ in range(3):
            assert await list_run_ids(store, RunFilter(interrupted=True)) == []
            with pytest.raises(RunBusy):
                await store.claim("run-1", other)
            assert get_run_ids(await store.claim_next(other, agents=["agent"], limit=1)) == []
            await ahead.advance(timedelta(seconds=20))
            connection = apsw.Connection(str(path))
            connection.execute(statement("beat"), (worker.worker_id, 0))
            connection.close()


async def test_what_ran_before_the_host_was_restarted_is_dead_at_once(tmp_path: Path) -> None:
    name, *_ = this_process().host.split("/")
    process = msgspec.structs.replace(this_process(), host=f"{name}/an-earlier-boot/pid:[1]")
    await _leave_a_run_of(WorkerIdentity(worker_id="earlier", process=process), tmp_path / "runs.db", ManualClock())
    async with opened(tmp_path / "runs.db", clock=ManualClock()) as store:
        taken = await store.claim_next(await add_worker(store), agents=["agent"], limit=1)
        assert get_run_ids(taken) == ["run-1"]


def _start_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def _kill_without_reaping(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


async def test_a_zombie_is_dead(tmp_path: Path) -> None:
    process = _start_process()
    identity = find_process(process.pid)
    assert identity is not None
    async with opened(tmp_path / "runs.db") as store:
        await store.register_worker(WorkerIdentity(worker_id="zombie", process=identity))
        await create_claimed(store, "zombie")
        other = await add_worker(store)
        with pytest.raises(RunBusy):
            await store.claim("run-1", other)
        _kill_without_reaping(process)
        assert (await store.claim("run-1", other)).run_id == "run-1"
    process.communicate()


#: Ends its main thread, but not its other one, as a killed process does for a moment.
_HALF_ENDED = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc shows the main thread as the process")
def test_a_process_lives_until_its_last_thread_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", _HALF_ENDED], stdin=subprocess.PIPE)
    identity = find_process(process.pid)
    assert identity is not None
    state = Path(f"/proc/{process.pid}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    assert is_process_alive(identity)
    _kill_without_reaping(process)
    assert not is_process_alive(identity)
    process.communicate()


async def test_a_heartbeat_does_not_bring_back_a_worker_that_another_process_deregistered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, lease = tmp_path / "runs.db", timedelta(milliseconds=20)
    async with opened(path, dead_after=lease) as store, opened(path, dead_after=lease) as other:
        worker, stays = elsewhere(), elsewhere()
        await store.register_worker(worker)
        await store.register_worker(stays)
        await create_claimed(store, worker.worker_id)
        await other.deregister_worker(worker.worker_id)
        connection = apsw.Connection(str(path))
        asked = "SELECT heartbeat_at FROM workers WHERE worker_id = ?"
        async with asyncio.timeout(60):
            for _ in range(3):
                first = connection.execute(asked, (stays.worker_id,)).get
                while connection.execute(asked, (stays.worker_id,)).get == first:
                    await store.wait_for_change(timedelta(milliseconds=5))
        assert connection.execute("SELECT worker_id FROM workers").fetchall() == [(stays.worker_id,)]
        connection.close()
        assert (await other.claim("run-1", await add_worker(other))).run_id == "run-1"
    assert caplog.text.count(f"deregistered worker {worker.worker_id}") == 1


async def test_a_process_that_can_be_seen_needs_no_heartbeat(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path / "runs.db", clock=clock) as store:
        await create_claimed(store, await add_worker(store))
        recycled = WorkerIdentity(
            worker_id="recycled", process=msgspec.structs.replace(this_process(), started="at another time")
        )
        await store.register_worker(recycled)
        await create_claimed(store, "recycled", make_run("run-2"))
        await clock.advance(HOUR)
        assert await list_run_ids(store, RunFilter(interrupted=True)) == ["run-2"]
        with pytest.raises(RunBusy):
            await store.claim("run-1", "another")


async def test_the_heart_beats_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path, dead_after=timedelta(milliseconds=50)) as store:
        await store.register_worker(elsewhere())
        connection = apsw.Connection(str(path))
        beats: set[object] = set()
        end = time.monotonic() + 60
        while len(beats) < 4 and time.monotonic() < end:
            beats.add(connection.execute("SELECT heartbeat_at FROM workers").get)
            time.sleep(0.01)  # noqa: ASYNC251 - to block the event loop is the point
        connection.close()
        assert len(beats) == 4


async def test_a_deregistered_worker_has_no_heartbeat_any_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    async with opened(path, dead_after=timedelta(milliseconds=5)) as store:
        for _ in range(50):
            worker = elsewhere()
            await store.register_worker(worker)
            await store.deregister_worker(worker.worker_id)
        stays = elsewhere()
        await store.register_worker(stays)
        connection = apsw.Connection(str(path))
        asked = "SELECT heartbeat_at FROM workers WHERE worker_id = ?"
        first = connection.execute(asked, (stays.worker_id,)).get
        async with asyncio.timeout(60):
            while connection.execute(asked, (stays.worker_id,)).get == first:
                await store.wait_for_change(timedelta(milliseconds=10))
        assert connection.execute("SELECT worker_id FROM workers").fetchall() == [(stays.worker_id,)]
        connection.close()
    assert "deregistered worker" not in caplog.text, "that is for those that another process has deregistered"


async def test_the_rows_of_dead_workers_do_not_add_up(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        for n in range(20):
            dead = msgspec.structs.replace(this_process(), started=f"at another time {n}")
            await store.register_worker(WorkerIdentity(worker_id=f"dead-{n}", process=dead))
        lives = await add_worker(store)
        connection = apsw.Connection(str(path))
        assert connection.execute("SELECT worker_id FROM workers").fetchall() == [(lives,)]
        connection.close()


# -- signs -------------------------------------------------------------------------------------------------------------


async def test_a_change_between_two_waits_is_not_missed(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store, opened(tmp_path / "runs.db") as other:
        for acting in (store, other):
            while await store.wait_for_change(timedelta(milliseconds=20)):
                pass
            await acting.create(make_run(f"by {acting}"))
            async with asyncio.timeout(60):
                assert await store.wait_for_change(HOUR)


async def test_saves_are_no_signs(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store, opened(tmp_path / "runs.db") as other:
        worker = await add_worker(store)
        await create_claimed(store, worker)
        while await store.wait_for_change(timedelta(milliseconds=20)):
            pass
        waiting = asyncio.ensure_future(store.wait_for_change(timedelta(milliseconds=300)))
        for n in range(10):
            await create_claimed(other, worker, make_run(f"other-{n}"))
        assert not await waiting
