"""Workspace: a folder that no path escapes, neither by `..` nor through a symbolic link."""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path

import msgspec

from holdfast.fanout.errors import PathRefused
from holdfast.ids import make_id

#: Larger files are refused.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: Models neither read, write nor list what is in these folders: version control and its hooks, stores, installed code.
EXCLUDED_DIRS = frozenset({".git", ".hg", ".svn", ".holdfast", ".venv", "node_modules", "__pycache__"})
#: Files that programs execute by themselves, such as hooks, build steps and settings of editors.
_RISKY_NAMES = frozenset(
    {"makefile", "dockerfile", "conftest.py", "sitecustomize.py", "setup.py", "package.json", "pyproject.toml"}
)
_RISKY_DIRS = frozenset({"hooks"})

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAME_BYTES = 255


class WriteSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change to one file that a model proposes. `Workspace.apply` makes it."""

    #: Relative to the workspace, with `/`.
    path: str
    content: str = msgspec.field(default_factory=str)
    delete: bool = False


class Workspace:
    """The files below one folder, by key: a relative path in which no part is `..` or a symbolic link."""

    def __init__(self, folder: Path | str) -> None:
        """Use this folder.

        Raises:
            PathRefused: the folder does not exist.
        """
        self.root: Path = Path(os.path.realpath(folder))
        if not self.root.is_dir():
            raise PathRefused(f"{folder} is not a folder")

    def resolve(self, path: str) -> str:
        """Return the key of `path`, whether the file exists or not.

        Raises:
            PathRefused: the path leads out of the folder, also through a symbolic link, into one of `EXCLUDED_DIRS`, or
                is not valid.
        """
        if not path or os.path.isabs(path) or not _is_valid_path(path):
            raise PathRefused(f"{path!r:.100} is not a path relative to the workspace")
        real = os.path.realpath(self.root / path)
        key = os.path.relpath(real, self.root)
        if key == os.curdir or key == os.pardir or key.startswith(os.pardir + os.sep):
            raise PathRefused(f"{path!r:.100} is not in the workspace")
        if excluded := EXCLUDED_DIRS.intersection(key.casefold().split(os.sep)):
            raise PathRefused(f"{path!r:.100} is in {min(excluded)}, which is not part of the workspace")
        return key

    def read(self, key: str) -> str | None:
        """Return the text of the file, or `None` if it does not exist.

        Raises:
            PathRefused: it is not a text file, or larger than `MAX_FILE_BYTES`.
        """
        try:
            with self._open_parent(key) as (parent, name):
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            raise _map_error(key, exc) from exc
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise PathRefused(f"{key} is not a file")
            if status.st_size > MAX_FILE_BYTES:
                raise PathRefused(f"{key} is too large: {status.st_size} bytes")
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read().decode()
        except UnicodeDecodeError as exc:
            raise PathRefused(f"{key} is not text in UTF-8") from exc
        finally:
            os.close(fd)

    def kind(self, key: str) -> str:
        """Return `file`, `folder` or `other`; an empty string if the path does not exist."""
        try:
            mode = os.lstat(self.root / key).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as exc:  # a cycle of symbolic links
            raise _map_error(key, exc) from exc
        return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"

    def files(self) -> Iterator[str]:
        """Iterate over the keys of all files, sorted. Skips symbolic links, `EXCLUDED_DIRS` and names not in UTF-8."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(each for each in folders if each.casefold() not in EXCLUDED_DIRS)
            for name in sorted(names):
                key = os.path.relpath(os.path.join(folder, name), self.root)
                if _is_valid_path(key) and self.kind(key) == "file":
                    yield key

    def apply(self, writes: Sequence[WriteSnapshot]) -> list[str]:
        """Check all changes, then make them, each file atomically. Return the changed keys.

        Raises:
            PathRefused: a path leads out of the folder, into one of `EXCLUDED_DIRS` or through a symbolic link, or
                conflicts with a file or folder:
                nothing was changed, unless the conflict arose during this call. Or the system refused a change: the
                changes before it were made.
        """
        written = {write.path for write in writes if not write.delete}
        deleted = {write.path for write in writes if write.delete}
        for write in writes:
            if self.resolve(write.path) != write.path or self.kind(write.path) == "other":
                raise PathRefused(f"{write.path!r:.100} leads through a symbolic link: nothing was applied")
            if self.kind(write.path) == "folder":
                raise PathRefused(f"{write.path!r:.100} is a folder: nothing was applied")
            for parent in () if write.delete else map(str, Path(write.path).parents):
                blocked = self.kind(parent) in ("file", "other") and parent not in deleted
                if blocked or parent in written:
                    raise PathRefused(f"{write.path!r:.100} is below a file: nothing was applied")
        # Deletions first: a folder may replace a file of the same name.
        for write in sorted(writes, key=attrgetter("delete"), reverse=True):
            try:
                self._delete(write.path) if write.delete else self._write(write.path, write.content.encode())
            except OSError as exc:
                raise _map_error(write.path, exc) from exc
        return [write.path for write in writes]

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), self._open_parent(key) as (parent, name):
            os.unlink(name, dir_fd=parent)
            os.fsync(parent)

    def _write(self, key: str, data: bytes) -> None:
        with self._open_parent(key, create=True) as (parent, name):
            mode: int | None = None
            with suppress(FileNotFoundError):
                before = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
                if not stat.S_ISREG(before):
                    raise PathRefused(f"{key} is not a file: it is not overwritten")
                mode = stat.S_IMODE(before)
            temporary = f".{make_id()}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=parent)
            try:
                with os.fdopen(fd, "wb") as file:
                    if mode is not None:
                        os.fchmod(fd, mode)
                    file.write(data)
                    file.flush()
                    os.fsync(fd)
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            os.fsync(parent)

    @contextmanager
    def _open_parent(self, key: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the parent folder and the file's name. Follows no symbolic link, not even a new one."""
        *folders, name = key.split(os.sep)
        fd = os.open(self.root, _DIR_FLAGS)
        try:
            for folder in folders:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(folder, dir_fd=fd)
                        os.fsync(fd)
                inner = os.open(folder, _DIR_FLAGS, dir_fd=fd)
                os.close(fd)
                fd = inner
            yield fd, name
        finally:
            os.close(fd)


def _is_valid_path(path: str) -> bool:
    try:
        return "\0" not in path and all(len(part.encode()) <= _MAX_NAME_BYTES for part in path.split(os.sep))
    except UnicodeEncodeError:
        return False


def _map_error(key: str, error: OSError) -> PathRefused:
    # O_NOFOLLOW fails with ELOOP, O_DIRECTORY on a link with ENOTDIR.
    is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
    return PathRefused(f"{key} leads through a symbolic link or a file" if is_link else f"{key}: {error.strerror}")


def is_risky(path: str) -> bool:
    """Return whether a person should read a change to this file first: programs may execute it by themselves.

    Hidden files and folders (settings of tools, editors and CI), hooks, and the files of build tools.
    """
    *folders, name = path.casefold().split("/")
    return (
        name in _RISKY_NAMES
        or not _RISKY_DIRS.isdisjoint(folders)
        or any(part.startswith(".") for part in (*folders, name))
    )
