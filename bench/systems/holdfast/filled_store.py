"""Fills a store with runs, faster than its users could."""

from contextlib import closing

import apsw

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import WorkerIdentity, this_process

#: The agent of the runs. No worker executes it.
PARKED = "parked"
CALLERS = 1000

WORKER = WorkerIdentity(worker_id="filler", process=this_process())


async def fill(store: RunStore, url: str, number: int) -> None:
    """Add runs: a third of them queued, a third waiting for mail that never comes, a third done.

    One of each is created by the store, and copied by SQL. The copies have no journals: nothing that is measured reads
    them.
    """
    await store.register_worker(WORKER)
    for status in (RunStatus.QUEUED, RunStatus.WAITING, RunStatus.DONE):
        await create(store, status, status.value)
    copies = number // 3
    copy = _copy_in_sqlite if url.startswith("sqlite:") else _copy_in_postgres
    copy(url, copies)


async def create(store: RunStore, status: RunStatus, run_id: str, release: Release | None = None) -> None:
    entry = Entry(seq=0, kind=EntryKind.BEGIN, body=b"{}")
    run = NewRun(run_id=run_id, agent_name=PARKED, caller_id="caller", entries=[entry], info=b"{}", progress=b"{}")
    claim = await store.create(run, worker_id=None if status is RunStatus.QUEUED else WORKER.worker_id)
    if claim is not None:
        wake_on = ["never"] if status is RunStatus.WAITING else ()
        await store.release(claim, release or Release(status=status, wake_on=wake_on))


def _copy_in_sqlite(url: str, copies: int) -> None:
    # By the library of the store: another one in this process would drop its locks.
    with closing(apsw.Connection(url.removeprefix("sqlite:"))) as connection:
        connection.set_busy_timeout(60_000)
        own = ("run_key", "run_id", "caller_id", "created_at")
        names = [name for _, name, *_ in connection.execute("PRAGMA table_info(runs)") if name not in own]
        rest = ", ".join(names)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"WITH RECURSIVE copy(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM copy WHERE number < {copies})"
            f" INSERT INTO runs ({', '.join(own)}, {rest})"
            f" SELECT (SELECT token FROM counters) + row_number() OVER (), run_id || '-' || number,"
            f" 'caller-' || number % {CALLERS}, created_at - 1000 * number, {rest} FROM runs, copy"
        )
        connection.execute("UPDATE counters SET token = (SELECT max(run_key) FROM runs)")
        connection.execute("COMMIT")


def _copy_in_postgres(url: str, copies: int) -> None:
    import psycopg  # a second of imports that jobs on SQLite should not pay for

    with psycopg.connect(url, autocommit=True) as connection:
        own = ("id", "run_id", "caller_id", "created_at")
        found = connection.execute(
            "select column_name from information_schema.columns where table_schema = 'holdfast' and table_name = 'run'"
        )
        rest = ", ".join(name for (name,) in found if name not in own)
        connection.execute(
            f"insert into holdfast.run ({', '.join(own[1:])}, {rest})"
            f" select run_id || '-' || number, 'caller-' || number % {CALLERS},"
            f" created_at - number * interval '1 ms', {rest} from holdfast.run, generate_series(1, {copies}) number"
        )
        connection.execute("vacuum analyze holdfast.run")
