"""What keeps the file small: deleting what was removed, giving space back, emptying the log. A little at a time."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import apsw

from holdfast.checkpoint.stores.sqlite.database import Database, sync_each_commit
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Execute

_log = logging.getLogger(__name__)

#: The log is copied into the database when it has grown by so many bytes.
_CHECKPOINT_BYTES = 4 * 2**20
#: If readers kept it from starting over until it is so many times as long, the next writer waits for them no more.
_LARGE = 8

#: The least time a slice of work may take, in seconds. Writes wait for it.
_SLICE = 0.001
#: And after it they have at least so long for themselves, unless there is a lot to do.
_REST = 0.02
#: When nobody has written for so long, nobody waits.
_QUIET = 0.02
#: Bytes that are deleted at once: how many depends on how long the last ones took. And no more pieces than if
#: each had so many.
_LEAST_AT_ONCE, _FIRST_AT_ONCE, _MOST_AT_ONCE, _LEAST_PIECE = 2**13, 2**16, 2**25, 512
#: Journals that are deleted side by side. If more wait, writes get no rest from it.
_JOURNALS_AT_ONCE = 256
#: Bytes that are moved between two looks at the time.
_MOVED_AT_ONCE = 2**16

#: Free pages are kept for the next runs: so many bytes, or this part of the file.
_KEPT_BYTES, _KEPT_PART = 2**19, 8

#: How long closing may go on tidying up. The rest is done after the next opening.
_LAST_EFFORT = 1.0


class Upkeep:
    """Work on the writer's connection, in its thread, between its transactions. None of it needs to be synced."""

    def __init__(self, connection: apsw.Connection, database: Database) -> None:
        self._connection = connection
        self._execute: Execute = connection.execute
        self._syncs = database.syncs_each_commit
        self._page_size: int = connection.pragma("page_size")
        #: Pages this connection has put into the log since it was copied last, and how many are in it.
        self._written = self._in_log = 0
        self._checkpoint_at = self._pages(_CHECKPOINT_BYTES)
        self._failed = False
        self._garbage = True
        #: Journals that were left to be deleted since all others were.
        self._left = 0
        self._at_once = _FIRST_AT_ONCE
        self._bloated = True
        self._shrunk = False
        self._rest_until = 0.0

    def pause(self) -> float | None:
        """For how many seconds the writer may wait for jobs before `step` is called; `None`: as long as it likes."""
        # Asked for, rather than told by a hook: a hook would take the interpreter from the event loop at every commit.
        self._written += self._connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE, True)[0]
        if self._failed:
            return None
        if self._written >= self._checkpoint_at:
            return 0.0
        if self._garbage:
            return max(0.0, self._rest_until - time.monotonic())
        return _QUIET if self._bloated else None

    def committed(self) -> None:
        """A transaction came about: what failed before may work now."""
        self._failed = False

    def littered(self, journals: int) -> None:
        """A transaction has left so many journals to be deleted."""
        self._garbage = True
        self._left += journals

    def step(self, budget: float, *, quiet: bool) -> None:
        """Do a slice of what is due, for about `budget` seconds. A failure is logged, and tried again another time."""
        if self._failed:
            return
        try:
            if self._written >= self._checkpoint_at:
                self._checkpoint()
            elif self._garbage and time.monotonic() >= self._rest_until:
                self._sweep(max(budget, _SLICE), quiet)
            elif quiet and self._bloated and not self._garbage:
                with self._unsynced():
                    self._shrink(time.perf_counter() + max(budget, _SLICE))
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

    @contextmanager
    def _unsynced(self) -> Iterator[None]:
        sync_each_commit(self._connection, False)
        try:
            yield
        finally:
            sync_each_commit(self._connection, self._syncs)

    def _checkpoint(self) -> None:
        usual = self._pages(_CHECKPOINT_BYTES)
        large = self._in_log + self._written >= _LARGE * usual
        mode = apsw.SQLITE_CHECKPOINT_RESTART if large else apsw.SQLITE_CHECKPOINT_PASSIVE
        in_log, copied = self._connection.wal_checkpoint(mode=mode)
        # What was copied as a whole is written over from its beginning.
        self._in_log = in_log if copied < in_log else 0
        self._checkpoint_at, self._written = usual, 0

    def _pages(self, size: int) -> int:
        return size // self._page_size

    def _sweep(self, budget: float, quiet: bool) -> None:
        """Delete pieces that nobody can reach, newest first. Where it stopped is in the same transaction.

        All of it in two statements: for each the interpreter is let go, and a busy event loop keeps it for long.
        """
        # The time this thread works: how long it waits for the interpreter says nothing about the size of the slice.
        began = time.thread_time()
        self._execute(statement("doom"), (_JOURNALS_AT_ONCE, self._at_once // _LEAST_PIECE, self._at_once))
        found = self._connection.changes()
        # To leave the sync out takes statements of its own: it is worth it if nobody waits for the interpreter.
        try:
            with self._unsynced() if quiet else nullcontext():
                self._execute(statement("sweep"), (_JOURNALS_AT_ONCE,))
        except apsw.Error:
            self._execute(statement("spare"))
            raise
        now, took = time.monotonic(), time.thread_time() - began
        pace = 0.5 if took > budget else 2.0 if took < budget / 2 else 1.0
        self._at_once = int(min(max(self._at_once * pace, _LEAST_AT_ONCE), _MOST_AT_ONCE))
        self._rest_until = 0.0 if self._left > _JOURNALS_AT_ONCE else now + _REST
        self._bloated = True
        if not found:
            self._garbage, self._left = False, 0

    def _shrink(self, end: float) -> None:
        """Move pages from the end of the file into free ones, and cut the end off."""
        pragma = self._connection.pragma
        while pragma("freelist_count") > max(self._pages(_KEPT_BYTES), pragma("page_count") // _KEPT_PART):
            if time.perf_counter() >= end:
                return
            self._connection.execute(f"PRAGMA incremental_vacuum({self._pages(_MOVED_AT_ONCE)})").fetchall()
            self._shrunk = True
        self._bloated = False
        if self._shrunk:
            # The file itself becomes shorter when the log is copied into it.
            self._checkpoint_at = 0
            self._shrunk = False
