"""SQLite files: connections, pragmas, permissions, waiting for locks, error mapping."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

import apsw

from holdfast.concurrency import THREADS
from holdfast.db.folders import fsync_folder
from holdfast.ids import draw_between
from holdfast.root_error import HoldfastError

_T = TypeVar("_T")

#: "hold" in ASCII. The checkpoint store and the batteries may share a file, and recognise it by this number.
APPLICATION_ID = 0x686F6C64
#: Pages of a new file. An existing file keeps its own. For one run with steps of 2 KB (W1) the file has 1.17 times the
#: size of the transcript, and 21.6 times its size is written. With 8 KB pages: 1.37 and 13.9 times; with 4 KB: 2.05
#: and 12.4.
PAGE_SIZE = 16384
_AUTO_VACUUM_INCREMENTAL = 2

#: A lock is usually held for less than a millisecond.
_MIN_BACKOFF_S, _MAX_BACKOFF_S = 0.0002, 0.002

#: How long a check of the files stays valid for a reader, or a writer whose commits follow one another. A check at each
#: commit would cost too much: a system call may wait 5 ms for the GIL.
FILE_CHECK_INTERVAL_S = 1.0

#: Kinds of "no room" that SQLite reports as a plain I/O error: a quota, a limit on the size of files.
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

#: The folder of the default store, in the working directory.
DEFAULT_FOLDER = ".holdfast"
#: Modes of new files and folders: only their owner reads transcripts.
_FILE_MODE, _FOLDER_MODE = 0o600, 0o700


class ErrorTypes(NamedTuple):
    """The exceptions that one user of a SQLite file raises, by the kind of problem."""

    full: type[HoldfastError]
    denied: type[HoldfastError]
    locked: type[HoldfastError]
    io: type[HoldfastError]
    replaced: type[HoldfastError]
    other: type[HoldfastError]


#: A file by its device and number; `None`: there is no file.
_FileIdentity = tuple[int, int] | None


class SqliteFile:
    """Opens connections to one SQLite file and maps their errors. Several processes may use the file."""

    def __init__(
        self, path: str | os.PathLike[str], *, timeout: timedelta, errors: ErrorTypes, vfs: str | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            path: the file.
            timeout: how long a statement waits for a lock that another connection holds.
            errors: what to raise.
            vfs: the name of a registered SQLite VFS, such as that of a simulated disk. `None` is SQLite's default.
        """
        #: Absolute: every connection opens the same file, also after `os.chdir`.
        self.path: Path = Path(path).absolute()
        self._timeout_s = timeout.total_seconds()
        self._errors, self._vfs = errors, vfs
        #: The file, its WAL and the index of its WAL, as `watch_files` found them: each path with its identity.
        self._watched: dict[str, _FileIdentity] = {}

    def watch_files(self) -> None:
        """Remember which files are at the path, for `check_files`. Call it when a connection has read from them."""
        # SQLite puts the other files beside the one to which a link leads.
        real = os.path.realpath(self.path)
        self._watched = {path: _identify_file(path) for path in (str(self.path), f"{real}-wal", f"{real}-shm")}

    def unwatch_files(self) -> None:
        """Accept any file at the path again, before the first connection is opened."""
        self._watched = {}

    def check_files(self) -> None:
        """Refuse if the watched files were deleted or replaced: commits would go to files without a name."""
        if any(_identify_file(path) != found for path, found in self._watched.items()):
            raise self._errors.replaced(
                f"{self.path}, its -wal or its -shm was deleted or replaced while it was open; nothing was written: put"
                " the old files back, or restart every process that uses the store"
            )

    def connect(self, may_wait: Callable[[], bool] | None = None) -> apsw.Connection:
        """Open a connection. It creates the file if that does not exist.

        Args:
            may_wait: asked before each wait for a lock; False ends the wait.
        """
        self.check_files()
        with self.mapped_errors():
            connection = apsw.Connection(str(self.path), vfs=self._vfs)
        # Without it SQLite plans by the bound values and prepares a statement again for each execution.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.set_busy_handler(_BusyHandler(self._timeout_s, may_wait))
        return connection

    def create(self) -> None:
        """Create the file and the missing folders above it, durably, and readable by their owner alone.

        Modes of an existing file and of existing folders do not change.
        """
        with self.mapped_errors():
            for folder in reversed([folder for folder in self.path.parents if not folder.exists()]):
                folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
                fsync_folder(folder.parent)
            if self.path.is_dir():
                raise self._errors.other(f"{self.path} is a folder: name a file in it")
            if not self.path.exists():
                self._create_file()

    def _create_file(self) -> None:
        # SQLite creates the WAL and its index with the mode of the file. O_EXCL: closing a descriptor of a file in use
        # would release the locks that this process has on it.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(os.path.realpath(self.path), os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE_MODE))

    def list_files(self) -> list[Path]:
        """Return the file, its WAL and the index of its WAL, as far as they exist."""
        files = [self.path, *(self.path.with_name(self.path.name + suffix) for suffix in ("-wal", "-shm"))]
        return [file for file in files if file.exists()]

    def describe_permissions(self) -> list[str]:
        """Return a warning for each file that other users of the machine may read, and for the default folder."""
        folder = self.path.parent
        checked = [(file, _FILE_MODE) for file in self.list_files()]
        if folder.name == DEFAULT_FOLDER:
            checked.append((folder, _FOLDER_MODE))
        return [
            f"other users of this machine may read {path}: chmod {mode:o} {path}"
            for path, mode in checked
            if path.stat().st_mode & 0o077
        ]

    def set_format(self, connection: apsw.Connection) -> None:
        """Set page size and vacuum mode of a new file, and WAL mode of any file."""
        connection.pragma("page_size", PAGE_SIZE)
        connection.pragma("auto_vacuum", _AUTO_VACUUM_INCREMENTAL)
        # SQLite does not call the busy handler when two processes change the journal mode at the same time.
        busy_handler = _BusyHandler(self._timeout_s, None)
        for attempt in count():
            try:
                mode = connection.pragma("journal_mode", "wal")
            except apsw.BusyError:
                if not busy_handler(attempt):
                    raise
            else:
                if mode != "wal":
                    raise self._errors.other(f"{self.path} cannot be used in WAL mode: put it on a local disk")
                return

    def refuse_truncated(self, connection: apsw.Connection) -> None:
        """Raise an error if the file ends too early. Reads only.

        SQLite reads the missing part of the last page as zeros, and a file without a whole page as an empty database.
        """
        # In a transaction, so that no other process shortens the file between the two sizes.
        connection.execute("BEGIN")
        try:
            expected = connection.pragma("page_count") * connection.pragma("page_size")
            wal = self.path.with_name(self.path.name + "-wal")
            has_wal = wal.exists() and wal.stat().st_size > 0
            size = self.path.stat().st_size
        finally:
            connection.execute("COMMIT")
        # A WAL may have the missing pages.
        if not has_wal and (size < expected or (size > 0 and expected == 0)):
            raise apsw.CorruptError(f"it has {size} bytes and not {expected}")

    def refuse_foreign(self, connection: apsw.Connection) -> None:
        """Raise an error if another program made the file. Reads only."""
        is_filled = connection.execute("SELECT EXISTS (SELECT 1 FROM sqlite_schema)").get
        if is_filled and connection.pragma("application_id") != APPLICATION_ID:
            raise self._errors.other(f"{self.path} is another program's database: name another file")

    @contextmanager
    def mapped_errors(self, connection: apsw.Connection | None = None) -> Iterator[None]:
        """Replace errors of SQLite and of the operating system by the user's own."""
        try:
            yield
        except (apsw.Error, OSError, UnicodeDecodeError) as exc:  # the last: a stored text was damaged
            raise self.map_error(exc, connection) from exc

    def map_error(self, exc: Exception, connection: apsw.Connection | None = None) -> HoldfastError:
        """Return the user's error for `exc`: what happened to the file, and what to do."""
        path, number = self.path, _get_errno(exc, connection)
        denied = apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError | PermissionError
        if isinstance(exc, apsw.FullError) or number in _DISK_FULL:
            return self._errors.full(f"no room left for {path}: free space and save again ({exc})")
        if isinstance(exc, denied) or number in _DENIED:
            return self._errors.denied(
                f"{path} cannot be opened or written: check the permissions of the file and its folder ({exc})"
            )
        if isinstance(exc, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
            return self._errors.locked(f"{path} is locked by another process: try again ({exc})")
        if isinstance(exc, apsw.NotADBError | apsw.CorruptError | UnicodeDecodeError):
            return self._errors.other(
                f"{path} is damaged or truncated, or is no SQLite database; it was left as it is: restore a backup, or"
                f" move it away to begin a new one ({exc})"
            )
        if isinstance(exc, apsw.TooBigError):
            return self._errors.other(f"a value is larger than SQLite can hold; nothing was written to {path} ({exc})")
        kind = self._errors.io if isinstance(exc, apsw.IOError) else self._errors.other
        return kind(f"{path} could not be read or written: {exc}")


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run the block in one write transaction. The lock is taken at the start, so checks hold until the commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise


def roll_back(connection: apsw.Connection) -> None:
    """Roll back, unless SQLite has done it: it does after some errors, such as a full disk."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def set_synchronous(connection: apsw.Connection, full: bool) -> None:
    """Choose whether each commit is synced to the disk, or only each checkpoint of the WAL."""
    connection.pragma("synchronous", "FULL" if full else "NORMAL")
    # Only macOS: a plain fsync there stops at the cache of the disk.
    connection.pragma("fullfsync", full)


class _BusyHandler:
    """Waits for a lock, with backoff, until a timeout."""

    def __init__(self, timeout_s: float, may_wait: Callable[[], bool] | None) -> None:
        self._timeout_s = timeout_s
        self._may_wait = may_wait
        self._deadline = 0.0

    def __call__(self, attempt: int) -> bool:
        """Wait before attempt number `attempt` + 1. Return False if the statement has to fail instead."""
        if self._may_wait is not None and not self._may_wait():
            return False
        threads = THREADS.get()
        now = threads.monotonic()
        if attempt == 0:
            self._deadline = now + self._timeout_s
        if now >= self._deadline:
            return False
        longest = min(_MAX_BACKOFF_S, _MIN_BACKOFF_S * 2 ** min(attempt, 10))
        threads.sleep(longest * draw_between(0.5, 1.0))
        return True


def _get_errno(exc: Exception, connection: apsw.Connection | None) -> int | None:
    if isinstance(exc, OSError):
        return exc.errno
    if isinstance(exc, apsw.IOError) and connection is not None:
        return connection.system_errno
    return None


def _identify_file(path: str) -> _FileIdentity:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
