"""A primary with a synchronous standby is killed under a fleet of workers, and the standby takes over.

`make chaos-ha` runs the long form, with Patroni and pgbouncer.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.chaos.agent import GATED, Effect, Ledger, chaos_agent
from tests.chaos.checks import find_faults
from tests.chaos.fleet import Fleet
from tests.chaos.test_fleet import collect
from tests.postgres_server import LocalServer
from tests.stores.postgres_support import fail_after_timeout, open_store, wait_until

from holdfast import App
from holdfast.batteries.schedule.jobs import SCHEMA as SCHEDULE
from holdfast.checkpoint.errors import RunNotFound
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.tables import Cursor, TablesUnavailable
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import load_bodies, make_run

RUNS, WORKERS = 50, 3
#: Their last calls are in progress when the primary is killed.
GATED_RUNS = [f"{GATED}{number}" for number in range(3)]

WAITS_FOR_STANDBY = "select true from pg_stat_activity where wait_event = 'SyncRep'"
CAUGHT_UP = "select replay_lsn = pg_current_wal_lsn() from pg_stat_replication"


class Pair:
    """A primary and its standby, reached by one URL."""

    def __init__(self) -> None:
        self.primary = LocalServer()
        self.standby = LocalServer(follows=self.primary)
        self.url = (
            f"postgresql://postgres@/postgres?host={self.primary.folder},{self.standby.folder}"
            "&target_session_attrs=read-write"
        )

    def make_synchronous(self) -> None:
        """Return when the primary waits for the standby at each commit."""
        self._configure(self.primary, "synchronous_standby_names = '*'")
        _wait_for(self.primary, "select sync_state = 'sync' from pg_stat_replication")

    def cut_replication(self) -> None:
        """Return when the standby receives nothing more."""
        self._configure(self.standby, "primary_conninfo = ''")
        _wait_for(self.standby, "select count(*) = 0 from pg_stat_wal_receiver")
        _wait_for(self.primary, "select count(*) = 0 from pg_stat_replication")

    def fail_over(self) -> None:
        """Kill the primary and promote the standby."""
        self.primary.kill()
        assert _ask(self.standby, "select pg_promote()")

    def remove(self) -> None:
        self.standby.remove()
        self.primary.remove()

    @staticmethod
    def _configure(server: LocalServer, setting: str) -> None:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"alter system set {setting}".encode())
            connection.execute("select pg_reload_conf()")


def _ask(server: LocalServer, question: str) -> bool:
    with psycopg.connect(server.url()) as connection:
        rows = connection.execute(question.encode()).fetchall()
        return bool(rows) and bool(rows[0][0])


def _wait_for(server: LocalServer, question: str) -> None:
    async def holds() -> bool:
        return _ask(server, question)

    asyncio.run(wait_until(holds))


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.remove()


@contextlib.contextmanager
def open_fleet(url: str, folder: Path) -> Iterator[Fleet]:
    workers = Fleet(url, folder, size=WORKERS, seconds=0.2, lease_seconds=300)
    try:
        yield workers
    finally:
        workers.close()


async def submit(url: str, ledger: Ledger) -> list[str]:
    run_ids = [*GATED_RUNS, *(f"run-{number}" for number in range(RUNS))]
    async with App([chaos_agent(ledger, 0)], url, worker=False) as app:
        return [await app.submit("chaos", "order", run_id=run_id) for run_id in run_ids]


def _is_in_the_middle(ledger: list[Effect]) -> bool:
    """Whether the gated runs have reached their gate, and others have executed."""
    gated = {effect.run_id for effect in ledger if effect.call_id == "ship-1"}
    return gated >= set(GATED_RUNS) and len(ledger) >= RUNS


async def test_workers_finish_their_runs_on_the_standby_without_a_restart(pair: Pair, tmp_path: Path) -> None:
    await asyncio.to_thread(pair.make_synchronous)
    with open_fleet(pair.url, tmp_path) as workers:
        submitted = await submit(pair.url, workers.ledger)
        await asyncio.to_thread(workers.wait_until, _is_in_the_middle)
        await asyncio.to_thread(pair.fail_over)
        before = workers.ledger.read()
        workers.ledger.open_gate()
        outcome = await collect(workers, submitted)
        ledger = workers.ledger.read()
        assert list(find_faults(outcome.outputs, ledger, submitted)) == [], workers.read_logs()
        assert outcome.left == []
        # The calls that were in progress at the failover were finished by the process that had started them.
        owners = {effect.run_id: effect.pid for effect in before}
        finished = {effect.run_id: effect.pid for effect in ledger[len(before) :]}
        assert {run_id: finished[run_id] for run_id in GATED_RUNS} == {run_id: owners[run_id] for run_id in GATED_RUNS}
        assert workers.count_starts() == [1] * WORKERS, workers.read_logs()
        assert workers.terminate() == [0] * WORKERS, workers.read_logs()


async def test_a_primary_that_lost_its_standby_acknowledges_nothing(pair: Pair) -> None:
    await asyncio.to_thread(pair.make_synchronous)
    async with open_store(pair.url) as store, fail_after_timeout():
        await store.create(make_run("before"))
        await asyncio.to_thread(pair.cut_replication)
        saving = asyncio.create_task(store.create(make_run("during")))
        await asyncio.to_thread(
            _wait_for, pair.primary, "select true from pg_stat_activity where wait_event = 'SyncRep'"
        )
        assert not saving.done()
        await asyncio.to_thread(pair.fail_over)
        # Not acknowledged, so it was not lost: the store sends it again, to the new primary.
        await saving
        assert await load_bodies(store, "during") == await load_bodies(store, "before") == [b"begin"]


async def test_an_asynchronous_standby_lacks_what_was_acknowledged(pair: Pair) -> None:
    """So the tests above can fail."""
    async with open_store(pair.url) as store, fail_after_timeout():
        await store.create(make_run("before"))
        await asyncio.to_thread(
            _wait_for, pair.primary, "select replay_lsn = pg_current_wal_lsn() from pg_stat_replication"
        )
        await asyncio.to_thread(pair.cut_replication)
        await store.create(make_run("during"))
        await asyncio.to_thread(pair.fail_over)
        assert await load_bodies(store, "before") == [b"begin"]
        with pytest.raises(RunNotFound):
            await store.load("during")


async def test_a_store_that_is_opened_during_a_failover_waits_for_its_end(pair: Pair) -> None:
    async with open_store(pair.url) as store:
        await store.create(make_run("before"))
    await asyncio.to_thread(_wait_for, pair.primary, CAUGHT_UP)
    pair.primary.kill()
    late = PostgresStore(pair.url)
    async with fail_after_timeout():
        opening = asyncio.create_task(late.open())
        await asyncio.wait([opening], timeout=0.2)
        assert not opening.done()
        assert _ask(pair.standby, "select pg_promote()")
        await opening
        assert await load_bodies(late, "before") == [b"begin"]
        await late.close()


async def test_a_battery_does_not_ask_the_new_primary_for_a_transaction_of_the_old_one(pair: Pair) -> None:
    tables = PostgresTables(pair.url)
    await tables.open(SCHEDULE)
    await asyncio.to_thread(pair.make_synchronous)
    await asyncio.to_thread(pair.cut_replication)

    async def insert(cursor: Cursor) -> None:
        await cursor.execute("INSERT INTO battery VALUES ('new', 1)")

    writing = asyncio.create_task(tables.transaction(insert))
    await asyncio.to_thread(_wait_for, pair.primary, WAITS_FOR_STANDBY)
    await asyncio.to_thread(pair.fail_over)
    with pytest.raises(TablesUnavailable, match="outcome of this write is unknown"):
        await writing
    await tables.transaction(insert)
    await tables.close()
