"""A work folder that nobody gets out of: not by `..`, not through a symbolic link."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.fanout.errors import PathRefused
from holdfast.fanout.snapshot import ProposedWrite

#: Larger files are for other tools.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: Folders that are nobody's work.
EXCLUDED_DIRS = frozenset({".git", ".holdfast", ".venv", "node_modules", "__pycache__"})

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NAME_BYTES = 255


class Workspace:
    """Files below one folder, by keys: paths relative to it in which no part is `..` or a symbolic link."""

    def __init__(self, folder: Path | str) -> None:
        """Take a folder.

        Raises:
            PathRefused: it is not there.
        """
        self.root = Path(os.path.realpath(folder))
        if not self.root.is_dir():
            raise PathRefused(f"{folder} is no folder")

    def resolve(self, path: str) -> str:
        """The one name of what `path` means, whether it is there or not.

        Raises:
            PathRefused: it is outside of the folder, also by way of a symbolic link, or it cannot be a path.
        """
        if not path or os.path.isabs(path) or not _is_valid_path(path):
            raise PathRefused(f"{path!r:.100} is no path relative to the work folder")
        real = os.path.realpath(self.root / path)
        key = os.path.relpath(real, self.root)
        if key == os.curdir or key == os.pardir or key.startswith(os.pardir + os.sep):
            raise PathRefused(f"{path!r:.100} is not below the work folder")
        return key

    def read(self, key: str) -> str | None:
        """The text of the file; `None` if there is none.

        Raises:
            PathRefused: it is no text file of a bearable size.
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
                raise PathRefused(f"{key} is no file")
            if status.st_size > MAX_FILE_BYTES:
                raise PathRefused(f"{key} is too large: {status.st_size} bytes")
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read().decode()
        except UnicodeDecodeError as exc:
            raise PathRefused(f"{key} is no text in UTF-8") from exc
        finally:
            os.close(fd)

    def kind(self, key: str) -> str:
        """`file`, `folder`, `other`, or nothing if nothing is there."""
        try:
            mode = os.lstat(self.root / key).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as exc:  # links that lead to each other
            raise _map_error(key, exc) from exc
        return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"

    def files(self) -> Iterator[str]:
        """The keys of all files, in order, without links and without folders that are nobody's work.

        A file whose name is no UTF-8 is left out: nobody could ask for it.
        """
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(each for each in folders if each not in EXCLUDED_DIRS)
            for name in sorted(names):
                key = os.path.relpath(os.path.join(folder, name), self.root)
                if _is_valid_path(key) and self.kind(key) == "file":
                    yield key

    def apply(self, writes: Sequence[ProposedWrite]) -> list[str]:
        """Make the changes, each file atomically, after all of them were looked at. The keys that were changed.

        Raises:
            PathRefused: a path leads out of the folder or through a symbolic link, or something is in the way. Nothing
                was changed, unless that appeared at this very moment. Or the system refused a change: those before it
                were made.
        """
        written = {write.path for write in writes if not write.delete}
        deleted = {write.path for write in writes if write.delete}
        for write in writes:
            if self.resolve(write.path) != write.path or self.kind(write.path) == "other":
                raise PathRefused(f"{write.path!r:.100} leads through a symbolic link: nothing was applied")
            if self.kind(write.path) == "folder":
                raise PathRefused(f"{write.path!r:.100} is a folder: nothing was applied")
            for above in () if write.delete else Path(write.path).parents:
                in_the_way = self.kind(str(above)) in ("file", "other") and str(above) not in deleted
                if in_the_way or str(above) in written:
                    raise PathRefused(f"{write.path!r:.100} is below a file: nothing was applied")
        # First what goes: a file may have to make room for a folder of its name.
        for write in sorted(writes, key=lambda write: not write.delete):
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
                    raise PathRefused(f"{key} is no file: it is not overwritten")
                mode = stat.S_IMODE(before)
            temporary = f".{secrets.token_hex(8)}.tmp"
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
        """The folder that the file is in, open, and its name there. Follows no link, however new it is."""
        *folders, name = key.split(os.sep)
        fd = os.open(self.root, _DIR_FLAGS)
        try:
            for each in folders:
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(each, dir_fd=fd)
                        os.fsync(fd)
                inner = os.open(each, _DIR_FLAGS, dir_fd=fd)
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
    # The system says the one or the other for a link where a folder or a file was expected.
    linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
    return PathRefused(f"{key} leads through a symbolic link or a file" if linked else f"{key}: {error.strerror}")
