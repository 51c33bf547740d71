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
    Origin,
    SavedHead,
    State,
    checksum,
    entry_line,
    origin_line,
    saved_line,
    state_line,
)
from holdfast.checkpoint.stores.file.locks import write_mark
from holdfast.checkpoint.stores.file.reading import Damaged, Head, read_journal

#: Old state lines are cleared away once they are more than this, and more than the entries.
STALE_BYTES = 256 * 1024


def new_journal_id() -> str:
    return secrets.token_hex(6)


def whole_journal(origin: Origin, meta: bytes, state: State, progress: bytes, entries: Iterable[Entry]) -> bytes:
    first = origin_line(origin, meta)
    lines = b"".join(map(entry_line, entries))
    state = msgspec.structs.replace(state, kept=len(lines))
    return b"".join((first, lines, state_line(state, progress, at=len(first), written=lines)))


def publish(disk: Disk, layout: Layout, name: str, origin: Origin, data: bytes, lock: int) -> None:
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
    write_mark(lock, disk, origin.journal, len(data))


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


class Journal:
    """A run's journal, open for changing."""

    def __init__(self, disk: Disk, layout: Layout, name: str, *, fd: int, lock: int, head: Head) -> None:
        self._disk, self._layout, self._name = disk, layout, name
        self._fd, self._lock = fd, lock
        self.head = head

    def add(self, state: State, progress: bytes, entries: Sequence[Entry] = ()) -> None:
        """Append the entries and the state that is true with them, in one write. All of it is there, or nothing."""
        at = self.head.end
        state, data = self._write_of(state, progress, entries)
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
            with contextlib.suppress(OSError):
                self._disk.cut(self._fd, at)
            raise
        write_mark(self._lock, self._disk, self.head.origin.journal, at + len(data))
        if at + len(data) - self.head.start - state.kept > max(STALE_BYTES, state.kept):
            self._clear_stale_lines()

    def _write_of(self, state: State, progress: bytes, entries: Sequence[Entry]) -> tuple[State, bytes]:
        """What commits the entries is a short line where the last state line says the rest."""
        head = self.head
        entry_lines = [entry_line(entry) for entry in entries]
        lines = b"".join(entry_lines)
        saved = SavedHead(state.updated_at, state.next_seq, state.size, head.end, checksum(lines), head.since)
        short = saved.state(head.base)
        if msgspec.structs.replace(state, kept=short.kept) == short:
            return short, lines + saved_line(saved, progress, above=entry_lines[-1] if entries else b"")
        state = msgspec.structs.replace(state, kept=head.state.kept + len(lines))
        return state, lines + state_line(state, progress, at=head.end, written=lines)

    def replace(self, state: State, progress: bytes, entries: Iterable[Entry]) -> None:
        """The journal is exactly these entries from now on. The old one or the new one is there, never neither."""
        origin = msgspec.structs.replace(self.head.origin, journal=new_journal_id())
        data = whole_journal(origin, self.head.meta, state, progress, entries)
        path, temporary = self._layout.journal(self._name), self._layout.new_temporary(self._name)
        with created(self._disk, temporary, data), _kept_aside(self._disk, self._layout, self._name):
            self._disk.replace(temporary, path)
            self._disk.sync_folder(self._layout.runs)
        write_mark(self._lock, self._disk, origin.journal, len(data))

    def _clear_stale_lines(self) -> None:
        """The write is safe already: if this fails, the file is longer than it has to be and nothing else."""
        with contextlib.suppress(OSError, Damaged):
            head, entries = read_journal(self._fd, None)
            self.replace(head.state, head.progress, entries)
