"""What SQLite's errors are called in holdfast."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from holdfast.checkpoint.errors import StoreDenied, StoreError, StoreFull, StoreUnavailable

#: Kinds of "no room" that SQLite reports as a plain I/O error: a quota, a limit on the size of files.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def as_store_error(
    exc: apsw.Error | OSError | UnicodeDecodeError, path: Path, connection: apsw.Connection | None = None
) -> StoreError:
    """The error of our tree that says what happened to `path` and what to do."""
    denied = apsw.ReadOnlyError | apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError | PermissionError
    if isinstance(exc, apsw.FullError) or _errno(exc, connection) in _NO_ROOM:
        return StoreFull(f"no room left for {path}: free space and save again ({exc})")
    if isinstance(exc, denied) or _errno(exc, connection) in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreDenied(f"{path} cannot be opened or written: check the permissions of it and its folder ({exc})")
    if isinstance(exc, apsw.BusyError | apsw.LockedError | apsw.ProtocolError):
        return StoreUnavailable(f"{path} is locked by another process: try again ({exc})")
    if isinstance(exc, apsw.NotADBError | apsw.CorruptError | UnicodeDecodeError):
        return StoreError(f"{path} is damaged, or is no SQLite database; it was left as it is ({exc})")
    if isinstance(exc, apsw.TooBigError):
        return StoreError(f"an entry is larger than SQLite can hold; nothing of the write is in {path} ({exc})")
    return StoreError(f"{path} could not be read or written: {exc}")


def _errno(exc: Exception, connection: apsw.Connection | None) -> int | None:
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
        raise as_store_error(exc, path, connection) from exc
