"""What SQLite's errors are called in holdfast.

The SQL of the store, read from its files once.

The database file: its folder, its connections, its schema.
"""

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import apsw

from holdfast.checkpoint.errors import SchemaTooNew, StoreError, StoreFull, StorePermissionError, StoreUnavailable

#: Kinds of "no room" that SQLite reports as a plain I/O error: a quota, a limit on the size of files.
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def map_error(
    exc: apsw.Error | OSError | UnicodeDecodeError, path: Path, connection: apsw.Connection | None = None
) -> StoreError:
    """The error of our tree that says what happened to `path` and what to do."""
    denied = apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError | PermissionError
    if isinstance(exc, apsw.FullError) or _get_errno(exc, connection) in _DISK_FULL:
        return StoreFull(f"no room left for {path}: free space and save again ({exc})")
    if isinstance(exc, denied) or _get_errno(exc, connection) in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StorePermissionError(
            f"{path} cannot be opened or written: check the permissions of it and its folder ({exc})"
        )
    if isinstance(exc, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return StoreUnavailable(f"{path} is locked by another process: try again ({exc})")
    if isinstance(exc, apsw.NotADBError | apsw.CorruptError | UnicodeDecodeError):
        return StoreError(f"{path} is damaged, or is no SQLite database; it was left as it is ({exc})")
    if isinstance(exc, apsw.TooBigError):
        return StoreError(f"an entry is larger than SQLite can hold; nothing of the write is in {path} ({exc})")
    return StoreError(f"{path} could not be read or written: {exc}")


def _get_errno(exc: Exception, connection: apsw.Connection | None) -> int | None:
    if isinstance(exc, OSError):
        return exc.errno
    if isinstance(exc, apsw.IOError) and connection is not None:
        return connection.system_errno
    return None


@contextmanager
def store_errors(path: Path, connection: apsw.Connection | None = None) -> Iterator[None]:
    """Nothing of SQLite's gets out: what it raises is raised as an error of our tree."""
    try:
        yield
    except (apsw.Error, OSError, UnicodeDecodeError) as exc:  # the last: a text is not what was written
        raise map_error(exc, path, connection) from exc


_SQL_FOLDER = files("holdfast.stores.sqlite") / "sql"
_SECTION = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@cache
def _load_sections() -> dict[str, str]:
    text = (_SQL_FOLDER / "statements.sql").read_text(encoding="utf-8")
    _, *parts = _SECTION.split(text)
    sections = {name: _strip_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
    return {name: body.replace("{record_columns}", sections["record_columns"]) for name, body in sections.items()}


def _strip_comments(body: str) -> str:
    # SQLite looks a statement up by its text each time: short texts are found faster.
    lines = (line.strip() for line in body.splitlines())
    return " ".join(line for line in lines if line and not line.startswith("--"))


def statement(name: str) -> str:
    """The statement that `statements.sql` calls so."""
    return _load_sections()[name]


def load_migrations() -> list[str]:
    """The scripts that lead from nothing to the newest schema; the n-th makes version n."""
    scripts = [file for file in (_SQL_FOLDER / "migrations").iterdir() if file.name.endswith(".sql")]
    ordered = sorted(scripts, key=lambda file: file.name)
    for version, file in enumerate(ordered, 1):
        assert int(file.name.partition("_")[0]) == version, f"{file.name} stands at place {version}"
    return [file.read_text(encoding="utf-8") for file in ordered]


#: `full`: what was acknowledged survives a power cut. `process`: it survives the process, and is faster.
Durability = Literal["full", "process"]

#: "hold", so that tools and we ourselves know the file again.
_APPLICATION_ID = 0x686F6C64

#: Half of a smaller page would stay empty under pieces of a few kilobytes, and smaller ones yet, which long pieces fill
#: one after the other, make loading slower by half.
_PAGE_SIZE = 16384

#: Bytes. The journals of runs that went on side by side lie side by side: what one load has read helps the next.
_WRITER_CACHE_BYTES, _READER_CACHE_BYTES = 32 * 2**20, 16 * 2**20
#: What the log keeps of its length when it starts over.
_WAL_SIZE_LIMIT = 16 * 2**20

#: A lock is usually held for less than a millisecond: ask soon, then more and more rarely.
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.0002, 0.002


class Database:
    """Where the file is and how it is opened. Knows no runs."""

    def __init__(self, path: Path, *, durability: Durability, timeout: timedelta) -> None:
        self.path = path
        self._durability = durability
        self._timeout = timeout.total_seconds()

    def prepare(self) -> None:
        """Create the folder, the file and the schema, or bring an older one up to date.

        Raises:
            SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
            StoreError: it is no database, or another program's. Nothing was changed.
        """
        with store_errors(self.path):
            self._create_folder()
            connection = self._connect()
        try:
            with store_errors(self.path, connection):
                self._migrate(connection)
        finally:
            connection.close()

    def connect_writer(self, may_wait: Callable[[], bool] = lambda: True) -> apsw.Connection:
        """A connection whose commits are as durable as was asked for. It never checkpoints by itself.

        Args:
            may_wait: asked when the file is locked; False ends the wait at once.
        """
        with store_errors(self.path):
            connection = self._connect(may_wait)
        with store_errors(self.path, connection):
            connection.pragma("cache_size", -_WRITER_CACHE_BYTES // 1024)
            connection.pragma("journal_size_limit", _WAL_SIZE_LIMIT)
            connection.wal_autocheckpoint(0)
            connection.pragma("temp_store", 2)  # in memory, for the little that follows
            for what in ("bulk_appends", "bulk_removals", "gc"):
                connection.execute(statement(f"prepare_{what}"))
            set_synchronous(connection, self._durability == "full")
        return connection

    def connect_reader(self) -> apsw.Connection:
        """A connection that changes nothing."""
        with store_errors(self.path):
            connection = self._connect()
        with store_errors(self.path, connection):
            connection.pragma("cache_size", -_READER_CACHE_BYTES // 1024)
            connection.pragma("query_only", True)
        return connection

    @property
    def syncs_each_commit(self) -> bool:
        return self._durability == "full"

    def _connect(self, may_wait: Callable[[], bool] = lambda: True) -> apsw.Connection:
        connection = apsw.Connection(str(self.path))
        # Otherwise it plans by what is bound: statements would be prepared anew every time they are executed.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_handler(_make_busy_handler(self._timeout, may_wait))
        return connection

    def _create_folder(self) -> None:
        missing = [folder for folder in self.path.absolute().parents if not folder.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder: name a file in it")
        for folder in missing:
            _fsync_folder(folder.parent)

    def _migrate(self, connection: apsw.Connection) -> None:
        if connection.readonly("main"):
            # Before the first read, which would leave a log and its index that may not be written either.
            raise StorePermissionError(
                f"{self.path} may only be read: check its permissions, and whether its disk is read-only"
            )
        scripts = load_migrations()
        # Read before anything that might write: a file that is not ours stays as it is.
        found = self._check_version(connection, len(scripts))
        connection.pragma("page_size", _PAGE_SIZE)
        connection.pragma("auto_vacuum", 2)
        self._enable_wal(connection)
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

    def _enable_wal(self, connection: apsw.Connection) -> None:
        """Two processes that do this at once get "busy" without being made to wait, so wait here."""
        wait = _make_busy_handler(self._timeout)
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


def set_synchronous(connection: apsw.Connection, full: bool) -> None:
    """Whether a commit is on the disk when it returns, or only safe from the end of the process."""
    connection.pragma("synchronous", "FULL" if full else "NORMAL")
    # Elsewhere than on macOS this changes nothing; there a plain sync stops at the disk's own cache.
    connection.pragma("fullfsync", full)


def _make_busy_handler(timeout: float, may_wait: Callable[[], bool] = lambda: True) -> Callable[[int], bool]:
    """What SQLite calls when the file is locked: waits a little, and says whether to try again."""
    deadline = 0.0

    def wait(attempt: int) -> bool:
        nonlocal deadline
        if not may_wait():
            return False
        now = time.monotonic()
        if attempt == 0:
            deadline = now + timeout
        if now >= deadline:
            return False
        longest = min(_MAX_BACKOFF_S, _MIN_BACKOFF_S * 2 ** min(attempt, 10))
        time.sleep(longest * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads the waiters
        return True

    return wait


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
