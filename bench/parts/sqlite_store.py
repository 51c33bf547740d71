"""The SQLite store beside what SQLite itself can do on this machine: `python -m bench.parts.sqlite_store`.

Raw is apsw with the same rows and no more: an entry and the run's row, written by hand. Store and raw take turns, so
that the noise of the machine meets both. Look at the ratios; the figures themselves change from machine to machine.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue

import apsw

from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import NewRun, RunFilter
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import Claim, WorkerIdentity, this_process
from holdfast.stores.sqlite import SqliteStore

KILOBYTE = os.urandom(1024)
PROGRESS = b"p" * 80
WORKER = WorkerIdentity(worker_id="bench", process=this_process())

Row = tuple[int, int, asyncio.Future[None]]


def print_result(what: str, value: str, target: str = "") -> None:
    print(f"{what:62} {value:>24}  {target}", flush=True)


@contextmanager
def folder() -> Iterator[Path]:
    """On the disk that the working directory is on: /tmp may be memory."""
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


# -- raw ---------------------------------------------------------------------------------------------------------------


def raw_database(path: Path, runs: int) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    connection.pragma("cache_size", -32768)
    connection.execute(
        "CREATE TABLE runs (run INTEGER PRIMARY KEY, run_id TEXT, token INT, next_seq INT, info BLOB, progress BLOB);"
        "CREATE TABLE entries (run INT, seq INT, kind TEXT, checksum INT, body BLOB);"
        "CREATE UNIQUE INDEX entries_of ON entries (run, seq)"
    )
    with connection:
        for run in range(runs):
            row = (run, f"run-{run:032}", 1, 0, b"m" * 200, PROGRESS)
            connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
    return connection


def raw_write(connection: apsw.Connection, run: int, seq: int) -> None:
    """Within a transaction."""
    row = (run, seq, "message", 12345678, KILOBYTE)
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
    bindings = (seq + 1, PROGRESS, run, 1)
    connection.execute("UPDATE runs SET next_seq = ?, progress = ? WHERE run = ? AND token = ?", bindings)
    assert connection.changes() == 1


class RawGroupCommit:
    """The least code that commits for many tasks from one thread."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
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
            self._connection.execute("BEGIN IMMEDIATE")
            for run, seq, _ in batch:
                raw_write(self._connection, run, seq)
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_resolve, batch)


def _resolve(batch: list[Row]) -> None:
    for _, _, done in batch:
        done.set_result(None)


# -- the store ---------------------------------------------------------------------------------------------------------


async def open_store(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    await store.open()
    await store.register_worker(WORKER)
    return store


async def create_claimed(store: SqliteStore, name: str) -> Claim:
    first = Entry(seq=0, kind=EntryKind.BEGIN, body=b"{}")
    run = NewRun(run_id=name, agent_name="agent", info=b"m" * 200, progress=PROGRESS, entries=[first])
    claim = await store.create(run, worker_id=WORKER.worker_id)
    assert claim is not None
    return claim


async def save(store: SqliteStore, claim: Claim, seq: int, count: int = 1) -> None:
    entries = [Entry(seq=seq + n, kind=EntryKind.MESSAGE, body=KILOBYTE) for n in range(count)]
    await store.append(claim, Append(entries=entries, progress=PROGRESS, step_finished=True))


async def create_with_entries(store: SqliteStore, name: str, entries: int) -> Claim:
    """Create a run with this many entries, 100 per save."""
    claim = await create_claimed(store, name)
    for first in range(1, entries + 1, 100):
        new = [
            Entry(seq=first + n, kind=EntryKind.MESSAGE, body=KILOBYTE) for n in range(min(100, entries + 1 - first))
        ]
        await store.append(claim, Append(entries=new, progress=PROGRESS, step_finished=True))
    return claim


# -- what is measured --------------------------------------------------------------------------------------------------


async def one_run(steps: int = 5000, turn: int = 250) -> None:
    """Two saves of one kilobyte a step, each on the disk before the next."""
    with folder() as place:
        connection = raw_database(place / "raw.db", 1)
        store = await open_store(place / "store.db")
        claim = await create_claimed(store, "run")
        raw_times: list[float] = []
        times: list[float] = []
        for step in range(steps):
            began = time.perf_counter()
            await save(store, claim, 2 * step + 1)
            await save(store, claim, 2 * step + 2)
            times.append(time.perf_counter() - began)
            if step % turn == turn - 1:
                for raw_step in range(step + 1 - turn, step + 1):
                    began = time.perf_counter()
                    for seq in (2 * raw_step, 2 * raw_step + 1):
                        connection.execute("BEGIN IMMEDIATE")
                        raw_write(connection, 0, seq)
                        connection.execute("COMMIT")
                    raw_times.append(time.perf_counter() - began)
        connection.close()
        await store.close()
        size = (place / "store.db").stat().st_size
    took, raw_took = sum(times) / steps, sum(raw_times) / steps
    # The quicker quarter: how long a step takes when nothing else wants the disk.
    first, last = (statistics.quantiles(hundred, n=4)[0] for hundred in (times[:100], times[-100:]))
    print_result(f"one run, {steps} steps of 2 KB: raw, two commits a step", f"{raw_took * 1e3:.3f} ms/step")
    print_result("  store", f"{took * 1e3:.3f} ms/step {took / raw_took:.2f}x", "kernel: 1.5x")
    print_result("  store, last hundred to first hundred", f"{last / first:.2f}x", "at most 1.2x")
    print_result("  file to transcript", f"{size / (steps * 2 * len(KILOBYTE)):.2f}x", "at most 1.3x")


async def _write_concurrently(
    write: Callable[[int, int], Awaitable[None]], runs: int, writes: int
) -> tuple[float, float]:
    """Writes a second, and microseconds of processor time for each."""

    async def one(run: int) -> None:
        for seq in range(writes):
            await write(run, seq)

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one(run) for run in range(runs)))
    count = runs * writes
    return count / (time.perf_counter() - began), (time.process_time() - spent) / count * 1e6


async def many_runs(runs: int, writes: int = 20, turns: int = 9) -> None:
    """All at once, each write on the disk before the run's next."""
    raw_rates: list[tuple[float, float]] = []
    rates: list[tuple[float, float]] = []
    for _ in range(turns):
        with folder() as place:
            connection = raw_database(place / "raw.db", runs)
            raw = RawGroupCommit(connection)
            raw_rates.append(await _write_concurrently(raw.write, runs, writes))
            raw.stop()
            connection.close()
            store = await open_store(place / "store.db")
            claims = await asyncio.gather(*(create_claimed(store, f"run-{run:032}") for run in range(runs)))

            async def write(run: int, seq: int, store: SqliteStore = store, claims: list[Claim] = claims) -> None:
                await save(store, claims[run], seq + 1)

            rates.append(await _write_concurrently(write, runs, writes))
            await store.close()
    ratio = statistics.median(rate / raw_rate for (rate, _), (raw_rate, _) in zip(rates, raw_rates, strict=True))
    raw_rate, raw_spent = (statistics.median(column) for column in zip(*raw_rates, strict=True))
    rate, spent = (statistics.median(column) for column in zip(*rates, strict=True))
    print_result(
        f"{runs} runs at once: raw group commit", f"{raw_rate:,.0f} writes/s", f"{raw_spent:.1f} us of processor each"
    )
    print_result("  store", f"{rate:,.0f} writes/s {ratio:.0%}", f"at least 70%; {spent:.1f} us of processor each")


#: One row for each entry, found by an index, in a table that has only these: what one would write by hand.
RAW_READ = "SELECT seq, kind, checksum, body FROM entries WHERE run = ? ORDER BY seq"
#: The very rows that the store reads, out of its own file; which ones is known beforehand.
OWN_ROWS = "SELECT seq, layout, checksum, body FROM json_each(?) AS place CROSS JOIN segments ON segment_key = value"


class Quickest:
    """Seconds of processor time, and by the clock, of the parts of a work: of each the quickest of all rounds."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[float, float]] = {}

    @contextmanager
    def part(self, number: int) -> Iterator[None]:
        began, spent = time.perf_counter(), time.process_time()
        yield
        took = time.process_time() - spent, time.perf_counter() - began
        before = self._parts.get(number, took)
        self._parts[number] = (min(took[0], before[0]), min(took[1], before[1]))

    @property
    def seconds(self) -> tuple[float, float]:
        spent, took = zip(*self._parts.values(), strict=True)
        return sum(spent), sum(took)


async def _runs_to_load(place: Path, runs: int, entries: int) -> list[str]:
    """Runs that saved two messages with every step, by the store and by hand. Gives the keys of each run's segments."""
    store = await open_store(place / "store.db")
    claims = await asyncio.gather(*(create_claimed(store, f"run-{run}") for run in range(runs)))
    for seq in range(1, entries + 1, 2):
        await asyncio.gather(*(save(store, claim, seq, 2) for claim in claims))
    await store.deregister_worker(WORKER.worker_id)
    await store.close()
    connection = raw_database(place / "raw.db", runs)
    with connection:
        for seq in range(entries):
            for run in range(runs):
                raw_write(connection, run, seq)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    connection = apsw.Connection(str(place / "store.db"))
    keys = connection.execute("SELECT json_group_array(segment_key) FROM segments GROUP BY run_key").fetchall()
    connection.close()
    return [str(row[0]) for row in keys]


def _reader(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.pragma("cache_size", -32768)
    return connection


async def interrupted_runs(runs: int = 1000, entries: int = 100, rounds: int = 7, block: int = 50) -> None:
    """What a new process finds, in files that the operating system has in memory.

    A load of the store goes through the event loop, finds the run's record, whether its owner lives, and the way to
    its segments, checks every byte, and gives the entries with their bodies; it decodes no message. Raw gives rows.
    """
    listing, loading, at_once, raw, own_rows = (Quickest() for _ in range(5))
    with folder() as place:
        keys = await _runs_to_load(place, runs, entries)
        for _ in range(rounds):
            store, second = SqliteStore(place / "store.db"), SqliteStore(place / "store.db")
            await store.open()
            await second.open()
            by_hand, of_store = _reader(place / "raw.db"), _reader(place / "store.db")
            with listing.part(0):
                names = [record.run_id async for record in iter_runs(store, RunFilter(interrupted=True))]
            for first in range(0, runs, block):
                some = range(first, first + block)
                with loading.part(first):
                    for run in some:
                        assert len((await store.load(names[run])).entries) == entries + 1
                with raw.part(first):
                    for run in some:
                        assert len(by_hand.execute(RAW_READ, (run,)).fetchall()) == entries
                with own_rows.part(first):
                    for run in some:
                        assert len(of_store.execute(OWN_ROWS, (keys[run],)).fetchall()) == entries // 2 + 1
                with at_once.part(first):
                    await asyncio.gather(*(second.load(names[run]) for run in some))
            await store.close()
            await second.close()
            by_hand.close()
            of_store.close()
    _print_loading(f"{runs} interrupted runs of {entries} entries", block, listing, loading, at_once, raw, own_rows)


def _print_loading(
    what: str, block: int, listing: Quickest, loading: Quickest, at_once: Quickest, raw: Quickest, own_rows: Quickest
) -> None:
    print_result(f"{what}: list", f"{listing.seconds[1] * 1e3:.0f} ms", "under 50 ms")
    for name, quickest, target in (
        ("raw, a table of entries", raw, ""),
        ("raw, the store's own rows by their keys", own_rows, ""),
        ("store, one after the other", loading, "at most 2x the table"),
        (f"store, {block} at once", at_once, ""),
    ):
        spent, took = quickest.seconds
        ratios = f"{spent / raw.seconds[0]:.2f}x the table, {spent / own_rows.seconds[0]:.2f}x its own rows"
        print_result(
            f"  load all: {name}", f"{spent:.3f} s of processor", f"{ratios}; {took:.3f} s by the clock  {target}"
        )


async def removal(entries: int = 10_000, others: int = 8, seconds: float = 2.0) -> None:
    """Saves of other runs while a long one is removed."""
    with folder() as place:
        store = await open_store(place / "store.db")
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


async def claiming(runs: int = 10_000) -> None:
    with folder() as place:
        store = await open_store(place / "store.db")
        await asyncio.gather(*(create_claimed(store, f"run-{n}") for n in range(runs)))
        await store.deregister_worker(WORKER.worker_id)
        await store.register_worker(WorkerIdentity(worker_id="second", process=this_process()))
        times = []
        for _ in range(100):
            began = time.perf_counter()
            assert len(await store.claim_next("second", agents=["agent"], limit=1)) == 1
            times.append(time.perf_counter() - began)
        await store.close()
    print_result(f"claim_next among {runs} interrupted runs", f"{statistics.median(times) * 1e3:.2f} ms")


async def main() -> None:
    await one_run()
    await many_runs(128)
    await many_runs(1000)
    await interrupted_runs()
    await removal()
    await claiming()


if __name__ == "__main__":
    asyncio.run(main())
