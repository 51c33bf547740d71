"""Keeps the file small: deletes removed journals, returns free pages, checkpoints the WAL. In short slices."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import apsw

from holdfast.concurrency import Threads
from holdfast.db.sqlite_file import set_synchronous
from holdfast.stores.sqlite.database import Database, statement
from holdfast.stores.sqlite.transaction import Execute

_log = logging.getLogger(__name__)

#: The WAL is checkpointed when it has grown by this.
_CHECKPOINT_BYTES = 4 * 2**20
#: If readers kept the WAL from starting over until it is this many times longer, the checkpoint waits for them.
_WAL_RESTART_FACTOR = 8

#: The shortest slice of work, in seconds. Writes wait for it.
_MIN_SLICE_S = 0.001
#: The pause after a slice, unless much garbage waits.
_REST_S = 0.02
#: Without writes for this long, the store is idle.
_IDLE_AFTER_S = 0.02
#: Bytes deleted in one slice, adapted to the time the last slice took. The last: bytes per segment, at least.
_MIN_SWEEP_BYTES, _INITIAL_SWEEP_BYTES, _MAX_SWEEP_BYTES, _MIN_SEGMENT_BYTES = 2**13, 2**16, 2**25, 512
#: Journals deleted in one slice. If more wait, there is no pause.
_MAX_SWEEP_JOURNALS = 256
#: Bytes moved between two checks of the time.
_VACUUM_BYTES = 2**16

#: Free space kept for the next runs: this many bytes, or this fraction of the file.
_KEEP_FREE_BYTES, _KEEP_FREE_DIVISOR = 2**19, 8

#: The time limit of the vacuum at close. The rest is done after the next open.
_CLOSE_TIMEOUT_S = 1.0


class Vacuum:
    """Works on the writer's connection, in its thread, between its transactions. Its commits need no fsync."""

    def __init__(self, connection: apsw.Connection, database: Database, threads: Threads) -> None:
        self._connection, self._threads = connection, threads
        self._execute: Execute = connection.execute
        self._syncs_commits = database.syncs_each_commit
        self._page_size: int = connection.pragma("page_size")
        #: Pages written to the WAL since the last checkpoint, and pages in the WAL then.
        self._pages_written = self._wal_pages = 0
        self._checkpoint_at = self._to_pages(_CHECKPOINT_BYTES)
        self._failed = False
        self._has_garbage = True
        #: Journals added since the last time there was no garbage.
        self._garbage_journals = 0
        self._sweep_bytes = _INITIAL_SWEEP_BYTES
        self._may_shrink = True
        self._shrunk = False
        self._rest_until = 0.0

    def idle_timeout(self) -> float | None:
        """Return how many seconds the writer may wait for writes before `run_slice`; `None`: without limit."""
        # Not a WAL hook: that would take the GIL from the event loop at every commit.
        self._pages_written += self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)[0]
        if self._failed:
            return None
        if self._pages_written >= self._checkpoint_at:
            return 0.0
        if self._has_garbage:
            return max(0.0, self._rest_until - self._threads.monotonic())
        return _IDLE_AFTER_S if self._may_shrink else None

    def on_commit(self) -> None:
        """Retry what failed before: a transaction was committed."""
        self._failed = False

    def garbage_added(self, journals: int) -> None:
        """Note that a transaction added journals to the garbage."""
        self._has_garbage = True
        self._garbage_journals += journals

    def run_slice(self, budget: float, *, idle: bool) -> None:
        """Do a part of the work that is due, for about `budget` seconds. A failure is logged and retried later."""
        if self._failed:
            return
        try:
            if self._pages_written >= self._checkpoint_at:
                self._checkpoint_wal()
            elif self._has_garbage and self._threads.monotonic() >= self._rest_until:
                self._sweep(max(budget, _MIN_SLICE_S), idle)
            elif idle and self._may_shrink and not self._has_garbage:
                with self._without_sync():
                    self._shrink(self._threads.monotonic() + max(budget, _MIN_SLICE_S))
        except apsw.BusyError:
            self._failed = True
        except apsw.Error:
            self._failed = True
            _log.warning("could not vacuum %s", self._connection.filename, exc_info=True)

    def finish(self) -> None:
        """Do what is due before the connection is closed, within a time limit."""
        end = self._threads.monotonic() + _CLOSE_TIMEOUT_S
        self._failed = False
        while self.idle_timeout() is not None and self._threads.monotonic() < end:
            self._rest_until = 0.0
            self.run_slice(_MIN_SLICE_S, idle=True)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as exc:
            # Other processes use the file: the last of them truncates the WAL.
            _log.debug("the WAL of %s was not truncated: %s", self._connection.filename, exc)

    @contextmanager
    def _without_sync(self) -> Iterator[None]:
        set_synchronous(self._connection, False)
        try:
            yield
        finally:
            set_synchronous(self._connection, self._syncs_commits)

    def _checkpoint_wal(self) -> None:
        usual = self._to_pages(_CHECKPOINT_BYTES)
        large = self._wal_pages + self._pages_written >= _WAL_RESTART_FACTOR * usual
        mode = apsw.SQLITE_CHECKPOINT_RESTART if large else apsw.SQLITE_CHECKPOINT_PASSIVE
        in_log, copied = self._connection.wal_checkpoint(mode=mode)
        # A WAL that was copied completely starts over.
        self._wal_pages = in_log if copied < in_log else 0
        self._checkpoint_at, self._pages_written = usual, 0

    def _to_pages(self, size: int) -> int:
        return size // self._page_size

    def _sweep(self, budget: float, idle: bool) -> None:
        """Delete unreachable segments, newest first. The same transaction records where it stopped."""
        # Processor time of this thread: waits for the GIL say nothing about the size of the slice.
        began = self._threads.processor_time()
        self._execute(
            statement("gc_mark"), (_MAX_SWEEP_JOURNALS, self._sweep_bytes // _MIN_SEGMENT_BYTES, self._sweep_bytes)
        )
        marked = self._connection.changes()
        # Switching fsync off takes four statements, which wait for the GIL if the event loop is busy.
        try:
            with self._without_sync() if idle else nullcontext():
                self._execute(statement("gc_sweep"), (_MAX_SWEEP_JOURNALS,))
        except apsw.Error:
            self._execute(statement("gc_unmark"))
            raise
        now, took = self._threads.monotonic(), self._threads.processor_time() - began
        pace = 0.5 if took > budget else 2.0 if took < budget / 2 else 1.0
        self._sweep_bytes = int(min(max(self._sweep_bytes * pace, _MIN_SWEEP_BYTES), _MAX_SWEEP_BYTES))
        self._rest_until = 0.0 if self._garbage_journals > _MAX_SWEEP_JOURNALS else now + _REST_S
        self._may_shrink = True
        if not marked:
            self._has_garbage, self._garbage_journals = False, 0

    def _shrink(self, end: float) -> None:
        """Move pages from the end of the file into free ones, and truncate the file."""
        pragma = self._connection.pragma
        while pragma("freelist_count") > max(
            self._to_pages(_KEEP_FREE_BYTES), pragma("page_count") // _KEEP_FREE_DIVISOR
        ):
            if self._threads.monotonic() >= end:
                return
            self._connection.execute(f"PRAGMA incremental_vacuum({self._to_pages(_VACUUM_BYTES)})").fetchall()
            self._shrunk = True
        self._may_shrink = False
        if self._shrunk:
            # The file becomes shorter when the WAL is checkpointed.
            self._checkpoint_at = 0
            self._shrunk = False
