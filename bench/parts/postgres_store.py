"""The PostgreSQL store beside what PostgreSQL itself can do on this machine: `python -m bench.parts.postgres_store`.

Raw is psycopg with the same rows and no more: an entry and the run's row, written by hand. Store and raw take turns on
one server, so that the noise of the machine meets both. Look at the ratios; the figures themselves change from
machine to machine.
"""

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from queue import Empty, SimpleQueue

import psycopg
from tests.postgres_server import LocalServer, fresh_database

from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import NewRun, RunFilter
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import Claim, WorkerIdentity, this_process
from holdfast.stores.postgres import PostgresStore

BODY = os.urandom(2048)
PROGRESS = b"p" * 80
WORKER = WorkerIdentity(worker_id="bench", process=this_process())

Row = tuple[int, int, asyncio.Future[None]]


def print_result(what: str, value: str, target: str = "") -> None:
    print(f"{what:62} {value:>24}  {target}", flush=True)


# -- raw ---------------------------------------------------------------------------------------------------------------


def raw_database(url: str, runs: int) -> psycopg.Connection:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(
        "drop table if exists raw_runs, raw_entries;"
        "create table raw_runs (run bigint primary key, run_id text, token bigint, next_seq bigint, info bytea,"
        " progress bytea) with (fillfactor = 60);"
        "create table raw_entries (run bigint, seq bigint, kind text, checksum bigint, body bytea,"
        " primary key (run, seq)) with (toast_tuple_target = 8160);"
        "alter table raw_entries alter column body set storage external"
    )
    connection.cursor().executemany(
        "insert into raw_runs values (%s, %s, 1, 0, %b, %b)",
        [(run, f"run-{run:032}", b"m" * 200, PROGRESS) for run in range(runs)],
    )
    connection.execute("vacuum analyze raw_runs, raw_entries")
    return connection


def raw_one_by_one(connection: psycopg.Connection, rows: Sequence[tuple[int, int]]) -> None:
    """A prepared statement for each row, all of them in one pipeline."""
    with connection.transaction():
        cursor = connection.cursor()
        cursor.executemany(
            "insert into raw_entries values (%s, %s, 'message', 12345678, %b)", [(*row, BODY) for row in rows]
        )
        cursor.executemany(
            "update raw_runs set next_seq = %s, progress = %b where run = %s and token = 1",
            [(seq + 1, PROGRESS, run) for run, seq in rows],
        )


def raw_by_arrays(connection: psycopg.Connection, rows: Sequence[tuple[int, int]]) -> None:
    """One statement for all rows."""
    connection.execute(
        "with entered as (insert into raw_entries select run, seq, 'message', 12345678, body"
        " from unnest(%(runs)b::bigint[], %(seqs)b::bigint[], %(bodies)b::bytea[]) as e (run, seq, body))"
        " update raw_runs r set next_seq = w.seq + 1, progress = w.progress"
        " from unnest(%(runs)b::bigint[], %(seqs)b::bigint[], %(progresses)b::bytea[]) as w (run, seq, progress)"
        " where r.run = w.run and r.token = 1",
        {
            "runs": [run for run, _ in rows],
            "seqs": [seq for _, seq in rows],
            "bodies": [BODY] * len(rows),
            "progresses": [PROGRESS] * len(rows),
        },
    )


RawWrite = Callable[[psycopg.Connection, Sequence[tuple[int, int]]], None]
RAW: dict[str, RawWrite] = {"statements in a pipeline": raw_one_by_one, "arrays": raw_by_arrays}


class RawGroupCommit:
    """As little as it takes to commit for many tasks on one connection."""

    def __init__(self, connection: psycopg.Connection, write: RawWrite) -> None:
        self._connection, self._write = connection, write
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Row | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def write(self, run: int, seq: int) -> None:
        done = self._loop.create_future()
        self._queue.put((run, seq, done))
        await done

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (row := self._queue.get()) is not None:
            batch = [row]
            try:
                while (row := self._queue.get_nowait()) is not None:
                    batch.append(row)
            except Empty:
                pass
            self._write(self._connection, [(run, seq) for run, seq, _ in batch])
            self._loop.call_soon_threadsafe(_resolve, batch)


def _resolve(batch: list[Row]) -> None:
    for _, _, done in batch:
        done.set_result(None)


# -- the store ---------------------------------------------------------------------------------------------------------


async def open_store(url: str) -> PostgresStore:
    store = PostgresStore(url)
    await store.open()
    await store.register_worker(WORKER)
    return store


async def create_claimed(store: PostgresStore, name: str, caller: str = "") -> Claim:
    first = Entry(seq=0, kind=EntryKind.BEGIN, body=b"{}")
    run = NewRun(run_id=name, agent_name="agent", caller_id=caller, info=b"m" * 200, progress=PROGRESS, entries=[first])
    claim = await store.create(run, worker_id=WORKER.worker_id)
    assert claim is not None
    return claim


async def save(store: PostgresStore, claim: Claim, seq: int) -> None:
    entry = Entry(seq=seq, kind=EntryKind.MESSAGE, body=BODY)
    await store.append(claim, Append(entries=(entry,), progress=PROGRESS, step_finished=True))


async def create_with_entries(store: PostgresStore, name: str, entries: int) -> Claim:
    """Return a run with this many entries, written quickly."""
    claim = await create_claimed(store, name)
    for first in range(1, entries + 1, 100):
        last = min(first + 100, entries + 1)
        new = [Entry(seq=seq, kind=EntryKind.MESSAGE, body=BODY) for seq in range(first, last)]
        await store.append(claim, Append(entries=new, progress=PROGRESS, step_finished=True))
    return claim


# -- what is measured --------------------------------------------------------------------------------------------------


async def one_run(server: LocalServer, steps: int = 2000, turn: int = 200) -> None:
    """One save a step, on the server's disk before the next."""
    with fresh_database(server) as url:
        connection = raw_database(url, 1)
        store = await open_store(url)
        claim = await create_claimed(store, "run")
        raw_times: list[float] = []
        times: list[float] = []
        for step in range(steps):
            began = time.perf_counter()
            await save(store, claim, step + 1)
            times.append(time.perf_counter() - began)
            if step % turn == turn - 1:
                for raw_step in range(step + 1 - turn, step + 1):
                    began = time.perf_counter()
                    raw_by_arrays(connection, [(0, raw_step)])
                    raw_times.append(time.perf_counter() - began)
        connection.close()
        await store.close()
    took, raw_took = statistics.median(times), statistics.median(raw_times)
    first, last = statistics.median(times[:100]), statistics.median(times[-100:])
    print_result(f"one run, {steps} saves of 2 KB: raw", f"{raw_took * 1e3:.3f} ms/step")
    print_result("  store", f"{took * 1e3:.3f} ms/step {took / raw_took:.2f}x", "kernel: 1.5x")
    print_result("  store, last hundred to first hundred", f"{last / first:.2f}x", "at most 1.2x")


async def _write_concurrently(write: Callable[[int, int], Awaitable[None]], runs: int, writes: int) -> float:
    async def one(run: int) -> None:
        for seq in range(writes):
            await write(run, seq)

    began = time.perf_counter()
    await asyncio.gather(*(one(run) for run in range(runs)))
    return runs * writes / (time.perf_counter() - began)


async def many_runs(server: LocalServer, runs: int, writes: int = 20, turns: int = 7) -> None:
    """All at once, each write on the disk before the run's next."""
    raw_rates: dict[str, list[float]] = {name: [] for name in RAW}
    rates, creations = [], []
    for _ in range(turns):
        with fresh_database(server) as url:
            for name, raw_write in RAW.items():
                connection = raw_database(url, runs)
                raw = RawGroupCommit(connection, raw_write)
                raw_rates[name].append(await _write_concurrently(raw.write, runs, writes))
                raw.stop()
                connection.close()
            store = await open_store(url)
            began = time.perf_counter()
            claims = await asyncio.gather(*(create_claimed(store, f"run-{run:032}") for run in range(runs)))
            creations.append(runs / (time.perf_counter() - began))

            async def write(run: int, seq: int, store: PostgresStore = store, claims: list[Claim] = claims) -> None:
                await save(store, claims[run], seq + 1)

            rates.append(await _write_concurrently(write, runs, writes))
            await store.close()
    for name, found in raw_rates.items():
        print_result(f"{runs} runs at once: raw group commit, {name}", f"{statistics.median(found):,.0f} writes/s")
    # Turn by turn: what slows the machine down for a while slows both.
    ratio = statistics.median(rate / max(raw) for rate, *raw in zip(rates, *raw_rates.values(), strict=True))
    print_result("  store", f"{statistics.median(rates):,.0f} writes/s {ratio:.0%}", "at least 70%")
    print_result("  store, creating them", f"{statistics.median(creations):,.0f} runs/s")


async def interrupted_runs(server: LocalServer, runs: int = 1000, entries: int = 50) -> None:
    """What a new process finds."""
    with fresh_database(server) as url:
        store = await open_store(url)
        await asyncio.gather(*(create_with_entries(store, f"run-{run}", entries) for run in range(runs)))
        await store.deregister_worker(WORKER.worker_id)
        await store.close()
        connection = raw_database(url, runs)
        for seq in range(entries):
            raw_by_arrays(connection, [(run, seq) for run in range(runs)])
        listing, raw_took, took = [], [], []
        for _ in range(3):
            store = PostgresStore(url)
            await store.open()
            began = time.perf_counter()
            names = [record.run_id async for record in iter_runs(store, RunFilter(interrupted=True))]
            listing.append(time.perf_counter() - began)
            began = time.perf_counter()
            for name in names:
                assert len((await store.load(name)).entries) == entries + 1
            took.append(time.perf_counter() - began)
            await store.close()
            began = time.perf_counter()
            for run in range(runs):
                what = "select seq, kind, checksum, body from raw_entries where run = %s order by seq"
                assert len(connection.execute(what, [run], binary=True).fetchall()) == entries
            raw_took.append(time.perf_counter() - began)
        connection.close()
    print_result(f"{runs} interrupted runs of {entries} entries: list", f"{min(listing) * 1e3:.0f} ms", "under 50 ms")
    raw_best, best = min(raw_took), min(took)
    print_result("  load all: raw", f"{raw_best:.3f} s")
    print_result("  load all: store", f"{best:.3f} s {best / raw_best:.2f}x", "at most 2x")


async def removal(server: LocalServer, entries: int = 5000, others: int = 8, seconds: float = 2.0) -> None:
    """Saves of other runs while a long one is removed."""
    with fresh_database(server) as url:
        store = await open_store(url)
        claims = [await create_claimed(store, f"other-{n}") for n in range(others)]
        seqs = dict.fromkeys(range(others), 1)

        async def saves(n: int, until: float, times: list[float]) -> None:
            while (began := time.perf_counter()) < until:
                await save(store, claims[n], seqs[n])
                seqs[n] += 1
                times.append(time.perf_counter() - began)

        async def p99(until: float) -> float:
            times: list[float] = []
            await asyncio.gather(*(saves(n, until, times) for n in range(others)))
            return statistics.quantiles(times, n=100)[98]

        calm, removing = [], []
        for n in range(5):
            long = await create_with_entries(store, f"long-{n}", entries)
            calm.append(await p99(time.perf_counter() + seconds / 5))
            await store.remove(long.run_id, claim=long)
            removing.append(await p99(time.perf_counter() + seconds / 10))
        await store.close()
    before, during = statistics.median(calm), statistics.median(removing)
    print_result(f"removing a run of {entries} entries: p99 of others' saves before", f"{before * 1e3:.2f} ms")
    print_result("  during", f"{during * 1e3:.2f} ms {during / before:.2f}x", "at most 3x")


async def claiming(server: LocalServer, callers: int, runs: int = 10_000) -> None:
    with fresh_database(server) as url:
        store = await open_store(url)
        await asyncio.gather(*(create_claimed(store, f"run-{n}", f"caller-{n % callers}") for n in range(runs)))
        await store.deregister_worker(WORKER.worker_id)
        await store.register_worker(WorkerIdentity(worker_id="second", process=this_process()))
        times = []
        for _ in range(100):
            began = time.perf_counter()
            assert len(await store.claim_next("second", agents=["agent"], limit=1)) == 1
            times.append(time.perf_counter() - began)
        await store.close()
    print_result(
        f"claim_next among {runs} interrupted runs of {callers} callers", f"{statistics.median(times) * 1e3:.2f} ms"
    )


async def main() -> None:
    server = LocalServer(fsync="on")
    await one_run(server)
    await many_runs(server, 128)
    await many_runs(server, 1000)
    await interrupted_runs(server)
    await removal(server)
    await claiming(server, callers=3)
    await claiming(server, callers=10_000)


if __name__ == "__main__":
    asyncio.run(main())
