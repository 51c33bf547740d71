"""The database file: its folder, its connections, its schema."""

import os
import random
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Literal

import apsw

from holdfast.checkpoint.errors import SchemaTooNew, StoreDenied, StoreError
from holdfast.checkpoint.stores.sqlite.failures import store_errors
from holdfast.checkpoint.stores.sqlite.statements import migrations, statement

#: `full`: what was acknowledged survives a power cut. `process`: it survives the process, and is faster.
Durability = Literal["full", "process"]

#: "hold", so that tools and we ourselves know the file again.
_APPLICATION_ID = 0x686F6C64

#: Half of a smaller page would stay empty under pieces of a few kilobytes, and smaller ones yet, which long pieces fill
#: one after the other, make loading slower by half.
_PAGE_SIZE = 16384

#: Bytes. The journals of runs that went on side by side lie side by side: what one load has read helps the next.
_WRITER_CACHE, _READER_CACHE = 32 * 2**20, 16 * 2**20
#: What the log keeps of its length when it starts over.
_WAL_KEPT = 16 * 2**20

#: A lock is usually held for less than a millisecond: ask soon, then more and more rarely.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.002


class Database:
    """Where the file is and how it is opened. Knows no runs."""

    def __init__(self, path: Path, *, durability: Durability, patience: timedelta) -> None:
        self.path = path
        self._durability = durability
        self._patience = patience.total_seconds()

    def prepare(self) -> None:
        """Create the folder, the file and the schema, or bring an older one up to date.

        Raises:
            SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
            StoreError: it is no database, or another program's. Nothing was changed.
        """
        with store_errors(self.path):
            self._make_folder()
            connection = self._connect()
        try:
            with store_errors(self.path, connection):
                self._migrate(connection)
        finally:
            connection.close()

    def writer(self, may_wait: Callable[[], bool] = lambda: True) -> apsw.Connection:
        """A connection whose commits are as durable as was asked for. It never checkpoints by itself.

        Args:
            may_wait: asked when the file is locked; False ends the wait at once.
        """
        with store_errors(self.path):
            connection = self._connect(may_wait)
        with store_errors(self.path, connection):
            connection.pragma("cache_size", -_WRITER_CACHE // 1024)
            connection.pragma("journal_size_limit", _WAL_KEPT)
            connection.wal_autocheckpoint(0)
            connection.pragma("temp_store", 2)  # in memory, for the little that follows
            for what in ("appends", "removals", "sweep"):
                connection.execute(statement(f"prepare_{what}"))
            sync_each_commit(connection, self._durability == "full")
        return connection

    def reader(self) -> apsw.Connection:
        """A connection that changes nothing."""
        with store_errors(self.path):
            connection = self._connect()
        with store_errors(self.path, connection):
            connection.pragma("cache_size", -_READER_CACHE // 1024)
            connection.pragma("query_only", True)
        return connection

    @property
    def syncs_each_commit(self) -> bool:
        return self._durability == "full"

    def _connect(self, may_wait: Callable[[], bool] = lambda: True) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        # Otherwise it plans by what is bound: statements would be prepared anew every time they are executed.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_handler(_patient(self._patience, may_wait))
        return connection

    def _make_folder(self) -> None:
        missing = [folder for folder in self.path.absolute().parents if not folder.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder: name a file in it")
        for folder in missing:
            _sync_folder(folder.parent)

    def _migrate(self, connection: apsw.Connection) -> None:
        if connection.readonly("main"):
            # Before the first read, which would leave a log and its index that may not be written either.
            raise StoreDenied(f"{self.path} may only be read: check its permissions, and whether its disk is read-only")
        scripts = migrations()
        # Read before anything that might write: a file that is not ours stays as it is.
        found = self._check_version(connection, len(scripts))
        connection.pragma("page_size", _PAGE_SIZE)
        connection.pragma("auto_vacuum", 2)
        self._use_wal(connection)
        if found == len(scripts):
            return
        connection.execute(statement("begin"))
        try:
            found = self._check_version(connection, len(scripts))
            for version, script in enumerate(scripts[found:], found + 1):
                connection.execute(script)
                connection.pragma("user_version", version)
            connection.pragma("application_id", _APPLICATION_ID)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _check_version(self, connection: apsw.Connection, known: int) -> int:
        # In this order: another process may be creating the schema, and does all of it at once.
        filled = connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").get
        if filled and connection.pragma("application_id") != _APPLICATION_ID:
            raise StoreError(f"{self.path} is another program's database: name another file")
        found: int = connection.pragma("user_version")
        if found > known:
            raise SchemaTooNew(str(self.path), found, known)
        return found

    def _use_wal(self, connection: apsw.Connection) -> None:
        """Two processes that do this at once get "busy" without being made to wait, so wait here."""
        wait = _patient(self._patience)
        for attempt in range(1_000_000):
            try:
                mode = connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                if not wait(attempt):
                    raise
            else:
                if mode != "wal":
                    raise StoreError(f"{self.path} cannot be used in WAL mode: put it on a local disk")
                return


def sync_each_commit(connection: apsw.Connection, wanted: bool) -> None:
    """Whether a commit is on the disk when it returns, or only safe from the end of the process."""
    connection.pragma("synchronous", "FULL" if wanted else "NORMAL")
    # Elsewhere than on macOS this changes nothing; there a plain sync stops at the disk's own cache.
    connection.pragma("fullfsync", wanted)


def _patient(patience: float, may_wait: Callable[[], bool] = lambda: True) -> Callable[[int], bool]:
    """What SQLite calls when the file is locked: waits a little, and says whether to try again."""
    deadline = 0.0

    def wait(attempt: int) -> bool:
        nonlocal deadline
        if not may_wait():
            return False
        now = time.monotonic()
        if attempt == 0:
            deadline = now + patience
        if now >= deadline:
            return False
        longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 10))
        time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads the waiters
        return True

    return wait


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
