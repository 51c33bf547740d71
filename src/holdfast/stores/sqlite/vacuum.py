"""What keeps the file small: deleting what was removed, giving space back, emptying the log. A little at a time."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import apsw

from holdfast.stores.sqlite.database import Database, set_synchronous, statement
from holdfast.stores.sqlite.transaction import Execute

_log = logging.getLogger(__name__)

#: The log is copied into the database when it has grown by so many bytes.
_CHECKPOINT_BYTES = 4 * 2**20
#: If readers kept it from starting over until it is so many times as long, the next writer waits for them no more.
_WAL_RESTART_FACTOR = 8

#: The least time a slice of work may take, in seconds. Writes wait for it.
_MIN_SLICE_S = 0.001
#: And after it they have at least so long for themselves, unless there is a lot to do.
_REST_S = 0.02
#: When nobody has written for so long, nobody waits.
_IDLE_AFTER_S = 0.02
#: Bytes that are deleted at once: how many depends on how long the last ones took. And no more pieces than if
#: each had so many.
_MIN_SWEEP_BYTES, _INITIAL_SWEEP_BYTES, _MAX_SWEEP_BYTES, _MIN_SEGMENT_BYTES = 2**13, 2**16, 2**25, 512
#: Journals that are deleted side by side. If more wait, writes get no rest from it.
_MAX_SWEEP_JOURNALS = 256
#: Bytes that are moved between two looks at the time.
_VACUUM_BYTES = 2**16

#: Free pages are kept for the next runs: so many bytes, or this part of the file.
_KEEP_FREE_BYTES, _KEEP_FREE_DIVISOR = 2**19, 8

#: How long closing may go on tidying up. The rest is done after the next opening.
_CLOSE_TIMEOUT_S = 1.0


class Vacuum:
    """Work on the writer's connection, in its thread, between its transactions. None of it needs to be synced."""

    def __init__(self, connection: apsw.Connection, database: Database) -> None:
        self._connection = connection
        self._execute: Execute = connection.execute
        self._syncs_commits = database.syncs_each_commit
        self._page_size: int = connection.pragma("page_size")
        #: Pages this connection has put into the log since it was copied last, and how many are in it.
        self._pages_written = self._wal_pages = 0
        self._checkpoint_at = self._to_pages(_CHECKPOINT_BYTES)
        self._failed = False
        self._has_garbage = True
        #: Journals that were left to be deleted since all others were.
        self._garbage_journals = 0
        self._sweep_bytes = _INITIAL_SWEEP_BYTES
        self._may_shrink = True
        self._shrunk = False
        self._rest_until = 0.0

    def idle_timeout(self) -> float | None:
        """For how many seconds the writer may wait for jobs before `step` is called; `None`: as long as it likes."""
        # Asked for, rather than told by a hook: a hook would take the interpreter from the event loop at every commit.
        self._pages_written += self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)[0]
        if self._failed:
            return None
        if self._pages_written >= self._checkpoint_at:
            return 0.0
        if self._has_garbage:
            return max(0.0, self._rest_until - time.monotonic())
        return _IDLE_AFTER_S if self._may_shrink else None

    def on_commit(self) -> None:
        """A transaction came about: what failed before may work now."""
        self._failed = False

    def garbage_added(self, journals: int) -> None:
        """A transaction has left so many journals to be deleted."""
        self._has_garbage = True
        self._garbage_journals += journals

    def run_slice(self, budget: float, *, idle: bool) -> None:
        """Do a slice of what is due, for about `budget` seconds. A failure is logged, and tried again another time."""
        if self._failed:
            return
        try:
            if self._pages_written >= self._checkpoint_at:
                self._checkpoint_wal()
            elif self._has_garbage and time.monotonic() >= self._rest_until:
                self._sweep(max(budget, _MIN_SLICE_S), idle)
            elif idle and self._may_shrink and not self._has_garbage:
                with self._without_sync():
                    self._shrink(time.perf_counter() + max(budget, _MIN_SLICE_S))
        except apsw.BusyError:
            self._failed = True
        except apsw.Error:
            self._failed = True
            _log.warning("could not tidy up %s", self._connection.filename, exc_info=True)

    def finish(self) -> None:
        """A last effort before the connection is closed."""
        end = time.monotonic() + _CLOSE_TIMEOUT_S
        self._failed = False
        while self.idle_timeout() is not None and time.monotonic() < end:
            self._rest_until = 0.0
            self.run_slice(_MIN_SLICE_S, idle=True)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as exc:
            # Other processes read or write: the last of them does it.
            _log.debug("the log of %s stays: %s", self._connection.filename, exc)

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
        # What was copied as a whole is written over from its beginning.
        self._wal_pages = in_log if copied < in_log else 0
        self._checkpoint_at, self._pages_written = usual, 0

    def _to_pages(self, size: int) -> int:
        return size // self._page_size

    def _sweep(self, budget: float, idle: bool) -> None:
        """Delete pieces that nobody can reach, newest first. Where it stopped is in the same transaction.

        All of it in two statements: for each the interpreter is let go, and a busy event loop keeps it for long.
        """
        # The time this thread works: how long it waits for the interpreter says nothing about the size of the slice.
        began = time.thread_time()
        self._execute(
            statement("gc_mark"), (_MAX_SWEEP_JOURNALS, self._sweep_bytes // _MIN_SEGMENT_BYTES, self._sweep_bytes)
        )
        found = self._connection.changes()
        # To leave the sync out takes statements of its own: it is worth it if nobody waits for the interpreter.
        try:
            with self._without_sync() if idle else nullcontext():
                self._execute(statement("gc_sweep"), (_MAX_SWEEP_JOURNALS,))
        except apsw.Error:
            self._execute(statement("gc_unmark"))
            raise
        now, took = time.monotonic(), time.thread_time() - began
        pace = 0.5 if took > budget else 2.0 if took < budget / 2 else 1.0
        self._sweep_bytes = int(min(max(self._sweep_bytes * pace, _MIN_SWEEP_BYTES), _MAX_SWEEP_BYTES))
        self._rest_until = 0.0 if self._garbage_journals > _MAX_SWEEP_JOURNALS else now + _REST_S
        self._may_shrink = True
        if not found:
            self._has_garbage, self._garbage_journals = False, 0

    def _shrink(self, end: float) -> None:
        """Move pages from the end of the file into free ones, and cut the end off."""
        pragma = self._connection.pragma
        while pragma("freelist_count") > max(
            self._to_pages(_KEEP_FREE_BYTES), pragma("page_count") // _KEEP_FREE_DIVISOR
        ):
            if time.perf_counter() >= end:
                return
            self._connection.execute(f"PRAGMA incremental_vacuum({self._to_pages(_VACUUM_BYTES)})").fetchall()
            self._shrunk = True
        self._may_shrink = False
        if self._shrunk:
            # The file itself becomes shorter when the log is copied into it.
            self._checkpoint_at = 0
            self._shrunk = False
