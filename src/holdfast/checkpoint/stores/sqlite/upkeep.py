"""What keeps the file small: deleting what was removed, giving space back, emptying the log. A little at a time."""

import heapq
import logging
import time
from collections.abc import Callable

import apsw

from holdfast.checkpoint.stores.sqlite.database import Database, sync_each_commit
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Execute

_log = logging.getLogger(__name__)

#: The log is copied into the database when it has grown by so many pages.
_CHECKPOINT_PAGES = 1000
#: If readers kept it from starting over until it has so many, the next writer waits for them no more.
_LARGE_LOG_PAGES = 8 * _CHECKPOINT_PAGES

#: The least time a slice of work may take, in seconds. Writes wait for it.
_SLICE = 0.0005
#: And after it they have at least so long for themselves, unless there is a lot to do.
_REST = 0.005
#: When nobody has written for so long, nobody waits.
_QUIET = 0.02
#: Between two looks at the time.
_PIECES_AT_ONCE, _BYTES_AT_ONCE, _PAGES_AT_ONCE = 16, 2**20, 4
#: Journals that are deleted side by side.
_JOURNALS_AT_ONCE = 256

#: Free pages are kept for the next runs: so many, or this part of the file.
_KEPT_PAGES, _KEPT_PART = 32, 8

#: How long closing may go on tidying up. The rest is done after the next opening.
_LAST_EFFORT = 1.0


class Upkeep:
    """Work on the writer's connection, in its thread, between its transactions. None of it needs to be synced."""

    def __init__(self, connection: apsw.Connection, database: Database) -> None:
        self._connection = connection
        self._execute: Execute = connection.execute
        self._syncs = database.syncs_each_commit
        self._log_pages = 0
        self._checkpoint_at = _CHECKPOINT_PAGES
        self._failed = False
        self._garbage = True
        self._bloated = True
        self._shrunk = False
        self._rest_until = 0.0
        connection.set_wal_hook(self._committed)

    def pause(self) -> float | None:
        """For how many seconds the writer may wait for jobs before `step` is called; `None`: as long as it likes."""
        if self._failed:
            return None
        if self._log_pages >= self._checkpoint_at:
            return 0.0
        if self._garbage:
            return max(0.0, self._rest_until - time.monotonic())
        return _QUIET if self._bloated else None

    def littered(self) -> None:
        """A transaction has left a journal to be deleted."""
        self._garbage = True

    def step(self, budget: float, *, quiet: bool) -> None:
        """Do a slice of what is due, for about `budget` seconds. A failure is logged, and tried again another time."""
        if self._failed:
            return
        try:
            if self._log_pages >= self._checkpoint_at:
                self._checkpoint()
            elif self._garbage and time.monotonic() >= self._rest_until:
                self._unsynced(self._sweep, max(budget, _SLICE))
            elif quiet and self._bloated and not self._garbage:
                self._unsynced(self._shrink, max(budget, _SLICE))
        except apsw.BusyError:
            self._failed = True
        except apsw.Error:
            self._failed = True
            _log.warning("could not tidy up %s", self._connection.filename, exc_info=True)

    def finish(self) -> None:
        """A last effort before the connection is closed."""
        end = time.monotonic() + _LAST_EFFORT
        self._failed = False
        while self.pause() is not None and time.monotonic() < end:
            self._rest_until = 0.0
            self.step(_SLICE, quiet=True)
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as exc:
            # Other processes read or write: the last of them does it.
            _log.debug("the log of %s stays: %s", self._connection.filename, exc)

    def _committed(self, connection: apsw.Connection, schema: str, pages: int) -> int:
        self._log_pages = pages
        self._failed = False
        return apsw.SQLITE_OK

    def _unsynced(self, work: Callable[[float], None], budget: float) -> None:
        sync_each_commit(self._connection, False)
        try:
            work(time.perf_counter() + budget)
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            sync_each_commit(self._connection, self._syncs)

    def _checkpoint(self) -> None:
        large = self._log_pages >= _LARGE_LOG_PAGES
        mode = apsw.SQLITE_CHECKPOINT_RESTART if large else apsw.SQLITE_CHECKPOINT_PASSIVE
        in_log, copied = self._connection.wal_checkpoint(mode=mode)
        self._checkpoint_at = _CHECKPOINT_PAGES + (in_log if copied < in_log else 0)
        self._log_pages = 0

    def _sweep(self, end: float) -> None:
        """Delete pieces that nobody can reach, newest first. Where it stopped is in the same transaction."""
        execute = self._execute
        execute(statement("begin"))
        before = set(execute(statement("newest_garbage"), (_JOURNALS_AT_ONCE,)).fetchall())
        ends = [(-piece, run) for piece, run in before]
        heapq.heapify(ends)
        while ends and time.perf_counter() < end:
            self._delete_some(ends)
        after = {(-piece, run) for piece, run in ends}
        for piece, _ in before - after:
            execute(statement("drop_garbage"), (piece,))
        for piece, run in after - before:
            execute(statement("add_garbage"), (piece, run))
        execute("COMMIT")
        much = len(before) == _JOURNALS_AT_ONCE
        self._garbage = much or bool(after)
        self._bloated = True
        self._rest_until = 0.0 if much else time.monotonic() + _REST

    def _delete_some(self, ends: list[tuple[int, int]]) -> None:
        """Delete the newest of the pieces in the heap `ends`, and put the one before each in its place."""
        size = 0
        for _ in range(_PIECES_AT_ONCE):
            if not ends or size > _BYTES_AT_ONCE:
                return
            piece, run = -ends[0][0], ends[0][1]
            # A damaged journal may end early.
            before, length = self._execute(statement("delete_piece"), (piece, run)).get or (0, 0)
            size += length
            if 0 < before < piece:
                heapq.heapreplace(ends, (-before, run))
            else:
                heapq.heappop(ends)

    def _shrink(self, end: float) -> None:
        """Move pages from the end of the file into free ones, and cut the end off."""
        pragma = self._connection.pragma
        while pragma("freelist_count") > max(_KEPT_PAGES, pragma("page_count") // _KEPT_PART):
            if time.perf_counter() >= end:
                return
            self._connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
            self._shrunk = True
        self._bloated = False
        if self._shrunk:
            # The file itself becomes shorter when the log is copied into it.
            self._checkpoint_at = 0
            self._shrunk = False
