"""Reading a journal: what is whole, what is torn, what is damaged.

A process or a power cut that ends a write half-way leaves a *torn* tail: bytes after the last whole write that no save
was ever told of. Readers pass over it. Everything else that does not fit is *damage*: of what lies below the mark
(see `locks.py`) a save was told that it is safe, and on a write that was not safe nobody ever builds another.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.stores.file.disk import read_at
from holdfast.checkpoint.stores.file.lines import (
    SAVED_START,
    STATE_START,
    NotALine,
    Origin,
    SavedHead,
    State,
    StateHead,
    checksum,
    parse_entry,
    parse_origin,
    parse_saved,
    parse_state,
    refers_above,
)
from holdfast.checkpoint.stores.file.locks import Mark

#: What is read at once: more than the last write of most journals, and than what comes before their first step's end.
_BLOCK = 4096
_COMMIT_STARTS = (SAVED_START, STATE_START)


class Damaged(Exception):
    """What is stored is not what was written."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """A journal without its entries."""

    origin: Origin
    meta: bytes
    state: State
    progress: bytes
    #: The last state line: where it begins and what it says.
    since: int
    base: State
    #: Where the first write begins.
    start: int
    #: Where the last whole write ends.
    end: int
    #: Of the file. More than `end` if the tail is torn.
    length: int
    #: The last whole write is known to be safe on disk.
    safe: bool


@dataclass(frozen=True, slots=True)
class _Commit:
    """The line that ends a whole write."""

    head: StateHead | SavedHead
    progress: bytes
    begin: int
    end: int


class _File:
    """A journal's bytes. The first block is read once: most of what a head takes is in it."""

    def __init__(self, fd: int) -> None:
        self._fd, self.length = fd, os.fstat(fd).st_size
        self._first = os.pread(fd, _BLOCK, 0)

    def read(self, begin: int, end: int) -> bytes:
        if end <= len(self._first):
            return self._first[begin:end]
        return read_at(self._fd, end - begin, begin)

    def line_at(self, begin: int) -> bytes:
        line_end = self._first.find(b"\n", begin) + 1
        if line_end:
            return self._first[begin:line_end]
        block = read_at(self._fd, _BLOCK, begin)
        while b"\n" not in block:
            more = read_at(self._fd, 4 * _BLOCK, begin + len(block))
            if not more:
                raise Damaged(f"the line at byte {begin} has no end")
            block += more
        return block[: block.index(b"\n") + 1]


def read_head(fd: int, mark: Mark | None) -> Head:
    """The first line and the last state, without the entries between them.

    Raises:
        Damaged: there is no such thing in the file, or something that was saved is missing at its end.
    """
    file = _File(fd)
    origin, meta, start = _read_origin(file)
    saved = _saved(origin, mark)
    commit = _last_commit(file, start=start, saved=saved)
    if commit.end < saved:
        raise Damaged(f"what follows byte {commit.end} is not what was written, and it was saved up to byte {saved}")
    if isinstance(commit.head, StateHead):
        since, base = commit.begin, commit.head.state
    else:
        since = commit.head.since
        base = _state_at(file, since)
    return _head(origin, meta, commit, since, base, start=start, length=file.length, saved=saved)


def _head(
    origin: Origin, meta: bytes, commit: _Commit, since: int, base: State, *, start: int, length: int, saved: int
) -> Head:
    return Head(
        origin=origin,
        meta=meta,
        state=base if isinstance(commit.head, StateHead) else commit.head.state(base),
        progress=commit.progress,
        since=since,
        base=base,
        start=start,
        end=commit.end,
        length=length,
        # A new file is synced before it gets its name.
        safe=commit.end <= saved or commit.head.at == start,
    )


def _saved(origin: Origin, mark: Mark | None) -> int:
    """Up to where the journal is known to have been acknowledged."""
    return mark.saved if mark is not None and mark.journal == origin.journal else 0


def _read_origin(file: _File) -> tuple[Origin, bytes, int]:
    line = file.line_at(0)
    try:
        return *parse_origin(line), len(line)
    except NotALine as error:
        raise Damaged(f"its first line is not what was written: {error}") from error


def _state_at(file: _File, begin: int) -> State:
    try:
        return parse_state(file.line_at(begin))[0].state
    except NotALine as error:
        raise Damaged(f"the state at byte {begin} is not what was written: {error}") from error


def _last_commit(file: _File, *, start: int, saved: int) -> _Commit:
    """The end of the last whole write, looked for backwards from the end of the file."""
    end, window = file.length, _BLOCK
    while end > start:
        begin = max(start, end - window)
        block = file.read(begin, end)
        found = _commit_in(block, begin, at_line_start=begin == start)
        if found is None:
            if begin == start:
                break
            window *= 4
            continue
        # This line may have reached the disk and what it commits not.
        if found.end <= saved or found.head.at == start or _commits(file, found):
            return found
        end, window = min(found.head.at, end - 1), _BLOCK
    raise Damaged("no state of the run is left in it")


def _commit_in(block: bytes, begin: int, *, at_line_start: bool) -> _Commit | None:
    """The last commit in the block, which begins at the offset `begin` of the file."""
    line_end = block.rfind(b"\n")
    while line_end >= 0:
        line_start = block.rfind(b"\n", 0, line_end) + 1
        if line_start == 0 and not at_line_start:
            return None
        line = block[line_start : line_end + 1]
        if line.startswith(_COMMIT_STARTS):
            above_start = block.rfind(b"\n", 0, max(0, line_start - 1)) + 1
            if above_start == 0 and not at_line_start and line.startswith(SAVED_START) and refers_above(line):
                return None
            try:
                return _parse_commit(line, block[above_start:line_start], begin + line_start)
            except NotALine:
                pass
        line_end = line_start - 1
    return None


def _parse_commit(line: bytes, above: bytes, begin: int) -> _Commit:
    """The commit at the offset `begin`; `above` is the line before it, which may be of the write before."""
    head: StateHead | SavedHead
    try:
        head, progress = parse_state(line) if line.startswith(STATE_START) else parse_saved(line, above)
    except NotALine:
        if not above.startswith(_COMMIT_STARTS) or not line.startswith(SAVED_START):
            raise
        head, progress = parse_saved(line, b"")
    return _Commit(head, progress, begin, begin + len(line))


def _commits(file: _File, commit: _Commit) -> bool:
    return checksum(file.read(commit.head.at, commit.begin)) == commit.head.sum


def read_journal(fd: int, mark: Mark | None) -> tuple[Head, Sequence[Entry]]:
    """All of it, every byte checked.

    Raises:
        Damaged: something that was saved is missing or is not what was written.
    """
    file = _File(fd)
    data = file.read(0, file.length)
    origin, meta, start = _read_origin(file)
    saved = _saved(origin, mark)
    writes, trouble = _Writes(data, start), ""
    while writes.end < len(data):
        try:
            writes.read_next()
        except NotALine as error:
            trouble = str(error)
            break
    end, last = writes.end, writes.last
    if last is None or writes.base is None or end < saved or (trouble and _continued(data, end)):
        raise Damaged(f"what follows byte {end} is not what was written: {trouble or 'it ends there'}")
    head = _head(origin, meta, last, writes.since, writes.base, start=start, length=len(data), saved=saved)
    if sum(len(entry.body) for entry in writes.entries) != head.state.size:
        raise Damaged("entries are missing")
    return head, writes.entries


class _Writes:
    """The writes of a journal, read one after another."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self.entries: list[Entry] = []
        self.end = start
        self.last: _Commit | None = None
        #: The last state line: where it begins and what it says.
        self.since = 0
        self.base: State | None = None
        self._next_seq: int | None = None

    def read_next(self) -> None:
        """Raises:
        NotALine: what follows is no whole write.
        Damaged: it is one, of another journal.
        """
        found: list[tuple[int | None, EntryKind, bytes]] = []
        position, above = self.end, b""
        while True:
            line_end = self._data.find(b"\n", position) + 1
            if not line_end:
                raise NotALine(f"the line at byte {position} has no end")
            line = self._data[position:line_end]
            try:
                if line.startswith(_COMMIT_STARTS):
                    self._take(_parse_commit(line, above, position), found)
                    return
                found.append(parse_entry(line))
            except NotALine as error:
                raise NotALine(f"the line at byte {position}: {error}") from error
            position, above = line_end, line

    def _take(self, commit: _Commit, found: Sequence[tuple[int | None, EntryKind, bytes]]) -> None:
        head = commit.head
        if head.at != self.end or head.sum != checksum(self._data[self.end : commit.begin]):
            raise NotALine("it does not belong to the lines before it")
        if isinstance(head, StateHead):
            self.since, self.base, next_seq = commit.begin, head.state, head.state.next_seq
        else:
            next_seq = head.next_seq
            if self.base is None or head.since != self.since:
                raise NotALine("it does not belong to the state before it")
        first = next_seq - len(found)
        for seq, (numbered, kind, body) in enumerate(found, first):
            if numbered not in (None, seq):
                raise Damaged("entries are missing")
            self.entries.append(Entry(seq=seq, kind=kind, body=body))
        if self._next_seq not in (None, first):
            raise Damaged("entries are missing")
        self.end, self.last, self._next_seq = commit.end, commit, next_seq


def _continued(data: bytes, end: int) -> bool:
    """Whether a later write follows: then the one at `end` was whole once."""
    position = data.find(b"\n", end) + 1
    above = data[end:position]
    while position:
        line_end = data.find(b"\n", position) + 1
        line = data[position:line_end]
        if line.startswith(_COMMIT_STARTS):
            try:
                if _parse_commit(line, above, position).head.at > end:
                    return True
            except NotALine:
                pass
        position, above = line_end, line
    return False
