"""The slices of the vacuum: how much each one deletes, when the next one is due, and what a failure stops."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from holdfast.concurrency import Threads
from holdfast.stores.sqlite.database import Database
from holdfast.stores.sqlite.vacuum import Vacuum

MIB = 2**20
BUDGET_S = 0.01


class SteppedThreads(Threads):
    """Time that passes by hand, and processor time of which each slice uses `cost` seconds."""

    def __init__(self) -> None:
        self.time, self.cost, self._used = 100.0, 0.0, 0.0

    def monotonic(self) -> float:
        return self.time

    def processor_time(self) -> float:
        self._used += self.cost
        return self._used


class Bench:
    """A file, a vacuum of it, and its time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(path, durability="full", timeout=timedelta(0))
        self.database.prepare()
        self.connection = self.database.connect_writer(lambda: False)
        self.threads = SteppedThreads()
        self.vacuum = Vacuum(self.connection, self.database, self.threads)

    def add_garbage(self, journals: int, segments: int, size: int) -> None:
        """Add the journals of removed runs, each with this many segments of `size` bytes."""
        key: int = self.connection.execute("SELECT coalesce(max(segment_key), 0) FROM segments").get
        with self.connection:
            for _ in range(journals):
                run_key = key + 1
                for number in range(segments):
                    key += 1
                    row = (key, run_key, key - 1 if number else 0, number, b"x" * size)
                    self.connection.execute("INSERT INTO segments VALUES (?1, ?2, ?3, ?4, 'm1', 0, ?5)", row)
                self.connection.execute("INSERT INTO garbage VALUES (?1, ?2)", (key, run_key))

    def count_segments(self) -> int:
        count: int = self.connection.execute("SELECT count(*) FROM segments").get
        return count

    def sweep(self, cost: float = 0.0) -> int:
        """Run a slice after a pause, and return how many segments it deleted."""
        self.threads.time += 1
        self.threads.cost = cost
        before = self.count_segments()
        self.vacuum.run_slice(BUDGET_S, idle=False)
        return before - self.count_segments()

    def finish_sweep(self) -> None:
        while self.count_segments() or self.connection.execute("SELECT count(*) FROM garbage").get:
            self.sweep()
        self.sweep()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "runs.db")
    try:
        yield bench
    finally:
        bench.connection.close()


def test_the_first_slice_deletes_64_kib_and_the_next_ones_as_much_as_their_time_allows(bench: Bench) -> None:
    bench.add_garbage(1, 2_000, 1024)
    assert bench.sweep() == 64
    assert bench.sweep(BUDGET_S) == 128, "it took less than half of its time"
    assert bench.sweep(BUDGET_S * 0.6) == 128
    assert bench.sweep(BUDGET_S * 1.1) == 128
    assert bench.sweep(BUDGET_S * 0.5) == 64, "it took too long"
    for _ in range(10):
        bench.sweep(1.0)
    assert bench.sweep(1.0) == 8, "at least 8 KiB"


def test_slices_with_less_than_a_millisecond_get_one(bench: Bench) -> None:
    bench.add_garbage(1, 500, 1024)
    bench.threads.cost = 0.0009
    bench.vacuum.run_slice(0.0, idle=False)
    assert bench.sweep() == 64, "the first one was in time"


def test_a_slice_has_a_pause_after_it_unless_much_garbage_waits(bench: Bench) -> None:
    bench.add_garbage(1, 500, 1024)
    bench.vacuum.garbage_added(256)
    assert bench.vacuum.idle_timeout() == 0.0
    assert bench.sweep() == 64
    assert bench.vacuum.idle_timeout() == pytest.approx(0.02)
    before = bench.count_segments()
    bench.vacuum.run_slice(BUDGET_S, idle=False)
    assert bench.count_segments() == before, "it rests"
    bench.vacuum.garbage_added(1)
    bench.sweep()
    assert bench.vacuum.idle_timeout() == 0.0
    bench.finish_sweep()
    bench.add_garbage(1, 500, 1024)
    bench.vacuum.garbage_added(256)
    bench.sweep()
    assert bench.vacuum.idle_timeout() == pytest.approx(0.02), "the journals before are not counted again"


def test_a_slice_deletes_at_most_256_journals(bench: Bench) -> None:
    bench.add_garbage(300, 1, 10)
    for _ in range(10):
        bench.sweep()
        if not bench.count_segments():
            break
    bench.add_garbage(300, 1, 10)
    bench.vacuum.garbage_added(300)
    assert bench.sweep() == 256
    assert bench.sweep() == 44


def test_free_pages_are_returned_when_no_run_writes_and_some_are_kept(bench: Bench) -> None:
    bench.add_garbage(1, 8 * 16, 64 * 1024)
    bench.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    full = bench.path.stat().st_size
    while bench.vacuum.idle_timeout() == 0.0:
        bench.vacuum.run_slice(BUDGET_S, idle=False)
    bench.finish_sweep()
    while bench.vacuum.idle_timeout() == 0.0:
        bench.vacuum.run_slice(BUDGET_S, idle=False)
    assert bench.vacuum.idle_timeout() == pytest.approx(0.02)
    free = bench.connection.pragma("freelist_count")
    bench.vacuum.run_slice(BUDGET_S, idle=False)
    assert bench.connection.pragma("freelist_count") == free, "a run may write"
    bench.vacuum.run_slice(BUDGET_S, idle=True)
    assert bench.connection.pragma("freelist_count") == 32, "512 KiB are kept for the next runs"
    assert bench.connection.pragma("synchronous") == 2
    assert bench.vacuum.idle_timeout() == 0.0, "the checkpoint makes the file shorter"
    bench.vacuum.run_slice(BUDGET_S, idle=True)
    assert bench.path.stat().st_size < full / 8
    assert bench.vacuum.idle_timeout() is None


def test_the_wal_is_checkpointed_when_it_has_grown_by_4_mib(bench: Bench) -> None:
    bench.finish_sweep()
    while bench.vacuum.idle_timeout() is not None:
        bench.vacuum.run_slice(BUDGET_S, idle=True)
    wal = bench.path.with_name("runs.db-wal")
    bench.add_garbage(1, 1, 4 * MIB - 256 * 1024)
    assert bench.vacuum.idle_timeout() is None
    bench.vacuum.run_slice(BUDGET_S, idle=True)
    size = bench.path.stat().st_size
    bench.add_garbage(1, 1, 256 * 1024)
    assert bench.vacuum.idle_timeout() == 0.0
    bench.vacuum.run_slice(BUDGET_S, idle=True)
    assert bench.path.stat().st_size > size + 3 * MIB
    grown = wal.stat().st_size
    bench.add_garbage(1, 1, 1024)
    assert wal.stat().st_size == grown, "it starts over"


def test_what_another_process_prevents_is_retried_after_the_next_commit(bench: Bench) -> None:
    bench.add_garbage(1, 100, 1024)
    other = bench.database.connect()
    try:
        other.execute("BEGIN IMMEDIATE")
        assert bench.sweep() == 0
        assert bench.vacuum.idle_timeout() is None
        other.execute("COMMIT")
    finally:
        other.close()
    assert bench.sweep() == 0, "not before the next commit"
    bench.vacuum.on_commit()
    assert bench.sweep() == 64


def test_an_error_is_logged_and_stops_the_vacuum_until_the_next_commit(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.add_garbage(1, 1, 1024)
    bench.connection.execute("ALTER TABLE garbage RENAME TO elsewhere")
    assert [bench.sweep(), bench.sweep()] == [0, 0]
    assert caplog.text.count(f"could not vacuum {bench.path}") == 1
    assert bench.vacuum.idle_timeout() is None
    bench.connection.execute("ALTER TABLE elsewhere RENAME TO garbage")
    bench.vacuum.on_commit()
    assert bench.sweep() == 1


def test_the_rest_is_done_at_close_within_a_second(bench: Bench) -> None:
    bench.add_garbage(2, 100, 1024)
    bench.sweep()
    assert bench.count_segments()
    bench.vacuum.finish()
    assert bench.count_segments() == 0
    assert bench.path.with_name("runs.db-wal").stat().st_size == 0
