"""Writing a journal: born whole, appended to in one write, replaced as a whole. Always under the run's lock."""

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.checkpoint.errors import RunExists
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.stores.file.disk import Disk
from holdfast.checkpoint.stores.file.layout import Layout, created
from holdfast.checkpoint.stores.file.lines import (
    SEAL,
    Origin,
    SavedHead,
    State,
    checksum,
    entry_line,
    origin_line,
    saved_line,
    state_line,
)
from holdfast.checkpoint.stores.file.locks import LockFile, write_mark
from holdfast.checkpoint.stores.file.reading import Damaged, Head, read_journal
from holdfast.checkpoint.stores.file.refused import Refused

#: Old state lines are cleared away once they are more than this, and more than the entries.
STALE_BYTES = 256 * 1024


def new_journal_id() -> str:
    return secrets.token_hex(6)


def whole_journal(origin: Origin, meta: bytes, state: State, progress: bytes, entries: Iterable[Entry]) -> bytes:
    first = origin_line(origin, meta)
    lines = b"".join(map(entry_line, entries))
    state = msgspec.structs.replace(state, kept=len(lines))
    return b"".join((first, lines, state_line(state, progress, at=len(first), written=lines)))


def publish(disk: Disk, layout: Layout, name: str, origin: Origin, data: bytes, lock: LockFile) -> None:
    """A new journal gets its name once it is whole and safe. Of two that want the same name one fails.

    Raises:
        RunExists: the name is taken.
    """
    path, temporary = layout.journal(name), layout.new_temporary(name)
    with created(disk, temporary, data):
        try:
            disk.link(temporary, path)
        except FileExistsError:
            raise RunExists(origin.run_id) from None
        try:
            disk.sync_folder(layout.runs)
        except OSError:
            disk.unlink(path)
            raise
    write_mark(lock.fd, disk, origin.journal, len(data))


def withdraw(disk: Disk, layout: Layout, name: str) -> None:
    """The journal is gone, after a power cut too."""
    with _kept_aside(disk, layout, name):
        disk.unlink(layout.journal(name))
        disk.sync_folder(layout.runs)


@contextlib.contextmanager
def _kept_aside(disk: Disk, layout: Layout, name: str) -> Iterator[None]:
    """If the block fails, the journal is the one that it was before."""
    path, aside = layout.journal(name), layout.new_temporary(name)
    # On a disk without room for a name, removing a run is what helps.
    with contextlib.suppress(OSError):
        disk.link(path, aside)
    try:
        yield
    except OSError:
        if os.path.exists(aside):
            disk.replace(aside, path)
        raise
    finally:
        disk.unlink(aside)


def _identity(file: os.stat_result) -> tuple[int, int]:
    return file.st_dev, file.st_ino


class Journal:
    """A run's journal, open for changing, under the run's lock."""

    def __init__(
        self, disk: Disk, layout: Layout, name: str, *, fd: int, lock: LockFile, head: Head, refused: Refused
    ) -> None:
        self._disk, self._layout, self._name = disk, layout, name
        self._fd, self._lock, self._refused = fd, lock, refused
        self.head = head
        #: The end of the last line that was written from here; empty if it is not known, or if the file was replaced.
        self._tail = b""
        self._identity: tuple[int, int] | None = None

    # -- between two changes ------------------------------------------------------------------------------------

    def keep_open(self) -> bool:
        """Whether the files stay open when the lock is let go of: not if this one has been replaced."""
        if self._tail and self._identity is None:
            self._identity = _identity(os.fstat(self._fd))
        self._lock.stays_open = bool(self._tail)
        return self._lock.stays_open

    def take_again(self, *, patience: float) -> bool:
        """Take the lock of a journal that was kept open. False if somebody else has changed or removed the run.

        Either way it is to be let go of, and is closed then unless `keep_open` says so again.

        Raises:
            LockHeld: it was not to be had within `patience` seconds.
        """
        self._lock.stays_open = False
        self._lock.take_again(patience=patience)
        return self._is_as_it_was_left()

    def _is_as_it_was_left(self) -> bool:
        """As long as the file at the path is this one, and it ends where and how our last write ended."""
        try:
            there = os.stat(self._layout.journal(self._name))
        except FileNotFoundError:
            return False
        end = self.head.end
        return (
            there.st_size == end
            and _identity(there) == self._identity
            and os.pread(self._fd, SEAL, end - SEAL) == self._tail
            and self._lock.is_there()
        )

    def let_go(self) -> None:
        self._lock.let_go()
        if not self._lock.stays_open:
            os.close(self._fd)

    def close(self) -> None:
        """Of a journal that was kept open."""
        os.close(self._lock.fd)
        os.close(self._fd)

    # -- changing -----------------------------------------------------------------------------------------------

    def add(self, state: State, progress: bytes, entries: Sequence[Entry] = ()) -> None:
        """Append the entries and the state that is true with them, in one write. All of it is there, or nothing."""
        at = self.head.end
        head, data = self._write_of(state, progress, entries)
        if self.head.length > at:
            # Nobody else is writing now, so what is there is torn.
            self._disk.cut(self._fd, at)
        if not self.head.safe:
            # Its writer died between write and sync. Built on before it is safe, it could be torn in the middle.
            self._disk.sync(self._fd)
        try:
            self._disk.write(self._fd, data, at)
            self._disk.sync(self._fd)
        except OSError:
            try:
                self._disk.cut(self._fd, at)
            except OSError:
                self._refused.note(self._name, at, data)
            raise
        write_mark(self._lock.fd, self._disk, head.origin.journal, head.end)
        self.head, self._tail = head, data[-SEAL:]
        if head.end - head.start - head.state.kept > max(STALE_BYTES, head.state.kept):
            self._clear_stale_lines()

    def _write_of(self, state: State, progress: bytes, entries: Sequence[Entry]) -> tuple[Head, bytes]:
        """What is to be written, and what is true then. A short line does where the last state line says the rest."""
        head = self.head
        at, since, base = head.end, head.since, head.base
        entry_lines = [entry_line(entry) for entry in entries]
        lines = b"".join(entry_lines)
        saved = SavedHead(state.updated_at, state.next_seq, state.size, at, checksum(lines), since)
        short = saved.state(base)
        if msgspec.structs.replace(state, kept=short.kept) == short:
            state = short
            data = lines + saved_line(saved, progress, above=entry_lines[-1] if entries else b"")
        else:
            since = at + len(lines)
            base = state = msgspec.structs.replace(state, kept=head.state.kept + len(lines))
            data = lines + state_line(state, progress, at=at, written=lines)
        end = at + len(data)
        return Head(
            origin=head.origin,
            meta=head.meta,
            state=state,
            progress=progress,
            since=since,
            base=base,
            start=head.start,
            end=end,
            length=end,
            safe=True,
        ), data

    def replace(self, state: State, progress: bytes, entries: Iterable[Entry]) -> None:
        """The journal is exactly these entries from now on. The old one or the new one is there, never neither."""
        origin = msgspec.structs.replace(self.head.origin, journal=new_journal_id())
        data = whole_journal(origin, self.head.meta, state, progress, entries)
        path, temporary = self._layout.journal(self._name), self._layout.new_temporary(self._name)
        with created(self._disk, temporary, data), _kept_aside(self._disk, self._layout, self._name):
            self._disk.replace(temporary, path)
            self._disk.sync_folder(self._layout.runs)
        write_mark(self._lock.fd, self._disk, origin.journal, len(data))
        self._tail = b""

    def _clear_stale_lines(self) -> None:
        """The write is safe already: if this fails, the file is longer than it has to be and nothing else."""
        with contextlib.suppress(OSError, Damaged):
            head, entries = read_journal(self._fd, None)
            self.replace(head.state, head.progress, entries)
