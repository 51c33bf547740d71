"""A host's own table as a store of one process."""

import os
import signal
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from examples.job_table import JobTable

from holdfast import User
from holdfast.checkpoint import CheckpointStore, MemoryCheckpointStore, RunCheckpoint
from holdfast.checkpoint.errors import (
    ClaimLost,
    RecordDecodeError,
    RunDamaged,
    RunExists,
    RunNotFound,
    StoreUnavailable,
)
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.stores.host import HostStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    load_contents,
    make_append,
    make_mail,
    make_run,
)
from holdfast.testing.store_suite import RunStoreSuite
from holdfast.testing.store_tests.reopen_tests import ReopenTests


def open_host_store(location: str) -> HostStore:
    """A store over the table in this file."""
    return HostStore(JobTable(location))


class TestHostStore(RunStoreSuite):
    """The whole contract of a store within one process."""

    factory = "tests.stores.test_host_store:open_host_store"

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "jobs.db")


class TestReopenedHostStore(ReopenTests):
    """Those tests of reopening in which no run has ended, no battery keeps rows, and no worker outlives its store."""

    factory = "tests.stores.test_host_store:open_host_store"
    test_rows_of_tables_are_kept_over_reopening = None  # type: ignore[assignment]
    test_all_runs_are_kept_over_reopening = None  # type: ignore[assignment]
    test_a_worker_keeps_its_claims_when_its_store_is_closed = None  # type: ignore[assignment]
    test_tokens_grow_over_removal_and_reopening = None  # type: ignore[assignment]
    test_backoff_and_expiry_hold_over_reopening = None  # type: ignore[assignment]

    @pytest.fixture
    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "jobs.db")


class FaultyTable(JobTable):
    """Refuses the next saves or deletes, and changes nothing then."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.faults = 0
        #: Saves that still succeed before the faults.
        self.left = 0

    def _check(self) -> None:
        if self.left:
            self.left -= 1
        elif self.faults:
            self.faults -= 1
            raise sqlite3.OperationalError("disk I/O error")

    async def save(self, checkpoint: RunCheckpoint) -> None:
        self._check()
        await super().save(checkpoint)

    async def delete(self, run_id: str) -> None:
        self._check()
        await super().delete(run_id)


@pytest.fixture
def table(tmp_path: Path) -> FaultyTable:
    return FaultyTable(str(tmp_path / "jobs.db"))


@pytest.fixture
async def store(table: FaultyTable) -> HostStore:
    store = HostStore(table)
    await store.open()
    return store


async def read_rows(table: JobTable) -> dict[str, RunStatus]:
    return {checkpoint.run_id: checkpoint.status for checkpoint in await table.list_interrupted()}


async def reopen(table: JobTable) -> HostStore:
    store = HostStore(table)
    await store.open()
    return store


async def test_a_run_has_a_row_until_it_ends(store: HostStore, table: FaultyTable) -> None:
    worker = await add_worker(store)
    claim = await create_claimed(store, worker)
    assert await read_rows(table) == {"run-1": RunStatus.RUNNING}
    await store.release(claim, Release(status=RunStatus.PARKED))
    assert await read_rows(table) == {"run-1": RunStatus.PARKED}
    claim = await store.claim("run-1", worker, statuses={RunStatus.PARKED})
    await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(days=1)))
    assert await read_rows(table) == {}
    assert (await get_record(store, "run-1")).status is RunStatus.DONE, "it is readable until the process ends"
    with pytest.raises(RunNotFound):
        await get_record(await reopen(table), "run-1")


async def test_a_restart_finds_journal_mail_strikes_and_tokens(store: HostStore, table: FaultyTable) -> None:
    worker = await add_worker(store)
    claim = await create_claimed(store, worker, make_run("run-1", b"zero", labels={"team": "red"}))
    await store.append(claim, make_append(1, b"one"))
    await store.post("run-1", make_mail())
    await store.request_cancel("run-1")
    restarted = await reopen(table)
    record, journal = await load_contents(restarted)
    assert [entry.body for entry in journal] == [b"zero", b"one"]
    assert (record.status, record.owner_alive, record.strikes, record.labels) == (
        RunStatus.RUNNING,
        False,
        1,
        {"team": "red"},
    )
    other = await add_worker(restarted)
    [taken] = await restarted.claim_next(other, agents=["agent"], limit=5)
    assert (taken.token > claim.token, taken.strikes, taken.taken_from) == (True, 2, worker)
    pending = await restarted.pending(other)
    assert (list(pending.mail), list(pending.cancels)) == (["run-1"], ["run-1"])
    with pytest.raises(ClaimLost):
        await restarted.append(claim, make_append(2, b"late"))


async def test_a_refused_save_changes_nothing(store: HostStore, table: FaultyTable) -> None:
    worker = await add_worker(store)
    claim = await create_claimed(store, worker, make_run("run-1", b"zero"))
    await store.create(make_run("run-2"))
    before, rows = await load_contents(store), await read_rows(table)
    calls = (
        lambda: store.append(claim, make_append(1, b"one")),
        lambda: store.release(claim, Release(status=RunStatus.INTERRUPTED)),
        lambda: store.release(claim, Release(status=RunStatus.DONE)),
        lambda: store.post("run-1", make_mail()),
        lambda: store.request_cancel("run-1"),
        lambda: store.claim("run-1", worker, steal=True),
        lambda: store.remove("run-1", claim=claim),
        lambda: store.create(make_run("run-3")),
    )
    for call in calls:
        table.faults = 1
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            await call()
        assert await load_contents(store) == before
        assert await list_run_ids(store) == ["run-1", "run-2"]
        assert await read_rows(table) == rows
    await store.append(claim, make_append(1, b"one"))
    assert await load_bodies(await reopen(table)) == [b"zero", b"one"]


async def test_of_several_claims_none_is_left_if_one_is_refused(store: HostStore, table: FaultyTable) -> None:
    for number in range(3):
        await store.create(make_run(f"run-{number}"))
    worker = await add_worker(store)
    table.left, table.faults = 2, 1
    with pytest.raises(StoreUnavailable):
        await store.claim_next(worker, agents=["agent"], limit=3)
    assert set((await read_rows(table)).values()) == {RunStatus.QUEUED}
    assert len(await store.claim_next(worker, agents=["agent"], limit=3)) == 3


async def test_an_ended_child_is_kept_until_its_parent_has_ended(store: HostStore, table: FaultyTable) -> None:
    worker = await add_worker(store)
    parent = await create_claimed(store, worker, make_run("parent"))
    child = await create_claimed(store, worker, make_run("child", parent_run_id="parent"))
    await store.release(child, Release(status=RunStatus.DONE))
    assert await read_rows(table) == {"parent": RunStatus.RUNNING, "child": RunStatus.DONE}
    assert (await get_record(await reopen(table), "child")).status is RunStatus.DONE
    await store.release(parent, Release(status=RunStatus.DONE))
    assert await read_rows(table) == {}


async def test_a_claim_check_writes_nothing(store: HostStore, table: FaultyTable) -> None:
    claim = await create_claimed(store, await add_worker(store))
    table.faults = 1
    await store.append(claim, make_append(1, progress=(await get_record(store, "run-1")).progress))
    assert table.faults == 1


def test_a_checkpoint_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RecordDecodeError):
        RunCheckpoint.from_json(b'{"run_id": 1}')


async def test_a_damaged_row_is_a_parked_run_and_affects_no_other(
    table: FaultyTable, store: HostStore, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in ("run-1", "run-2", "run-3"):
        await store.create(make_run(run_id))
    [row] = [each for each in await table.list_interrupted() if each.run_id == "run-2"]
    damaged = msgspec.structs.replace(row, body=msgspec.Raw(b'{"new":1}'))
    await table.save(damaged)
    store = await reopen(table)
    assert "run run-2 of the host's table is damaged" in caplog.text
    records = {each.run_id: each for each in (await store.list_page()).records}
    assert {run_id: each.status for run_id, each in records.items()} == {
        "run-1": RunStatus.QUEUED,
        "run-2": RunStatus.PARKED,
        "run-3": RunStatus.QUEUED,
    }
    assert records["run-2"].reason.startswith("damaged: ")
    worker = await add_worker(store)
    for refused in (
        store.load("run-2"),
        store.claim("run-2", worker, statuses=frozenset(RunStatus)),
        store.post("run-2", make_mail("m")),
    ):
        with pytest.raises(RunDamaged):
            await refused
    with pytest.raises(RunExists):
        await store.create(make_run("run-2"))
    assert len(await store.claim_next(worker, agents=["agent"], limit=5)) == 2
    assert await table.load("run-2") == damaged
    table.faults = 1
    with pytest.raises(StoreUnavailable):
        await store.remove("run-2")
    assert await table.load("run-2") == damaged
    await store.remove("run-2")
    assert await table.load("run-2") is None
    await store.create(make_run("run-2"))
    assert (await get_record(store, "run-2")).status is RunStatus.QUEUED


@pytest.fixture(params=[MemoryCheckpointStore, JobTable])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return MemoryCheckpointStore() if request.param is MemoryCheckpointStore else JobTable(str(tmp_path / "jobs.db"))


async def test_the_four_methods(checkpoints: CheckpointStore) -> None:
    assert isinstance(checkpoints, CheckpointStore)
    store = HostStore(checkpoints)
    await store.open()
    await store.create(make_run("run-1"))
    assert await checkpoints.load("unknown") is None
    [kept] = await checkpoints.list_interrupted()
    assert await checkpoints.load("run-1") == kept
    assert RunCheckpoint.from_json(kept.to_json()) == kept
    await checkpoints.delete("run-1")
    await checkpoints.delete("run-1")
    assert list(await checkpoints.list_interrupted()) == []


def start_host(folder: Path) -> "subprocess.CompletedProcess[str]":
    program = Path(__file__).with_name("host_worker.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(program), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


async def test_a_host_killed_inside_a_once_call_resumes_the_run(tmp_path: Path) -> None:
    table = JobTable(str(tmp_path / "jobs.db"))
    assert start_host(tmp_path).returncode == -signal.SIGKILL
    [checkpoint] = await table.list_interrupted()
    assert (checkpoint.run_id, checkpoint.status, checkpoint.steps) == ("r", RunStatus.RUNNING, 2)
    assert (checkpoint.info.prompt, checkpoint.messages[0]) == ("Book five.", User("Book five."))
    done = start_host(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("booked") == 4, done.stdout
    assert done.stdout.count("Unknown outcome") == 1, "the call in doubt is reported"
    assert (tmp_path / "ledger").read_text().split() == [f"book-{number}" for number in range(5)], "none is made twice"
    assert await table.list_interrupted() == []
