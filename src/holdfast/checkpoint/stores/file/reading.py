"""Reading a journal: what is whole, what is torn, what is damaged.

A process or a power cut that ends a write half-way leaves a *torn* tail: bytes after the last whole write that no save
was ever told of. Readers pass over it. Everything else that does not fit is *damage*: of what lies below the mark
(see `locks.py`) a save was told that it is safe, and on a write that was not safe nobody ever builds another.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.stores.file.disk import read_at
from holdfast.checkpoint.stores.file.lines import (
    STATE_START,
    NotALine,
    Origin,
    State,
    StateHead,
    checksum,
    parse_entry,
    parse_origin,
    parse_state,
)
from holdfast.checkpoint.stores.file.locks import Mark

_BLOCK = 4096


class Damaged(Exception):
    """What is stored is not what was written."""


@dataclass(frozen=True, slots=True)
class Head:
    """A journal without its entries."""

    origin: Origin
    meta: bytes
    state: State
    progress: bytes
    #: Where the first write begins.
    start: int
    #: Where the last whole write ends.
    end: int
    #: Of the file. More than `end` if the tail is torn.
    length: int
    #: The last whole write is known to be safe on disk.
    safe: bool


@dataclass(frozen=True, slots=True)
class _Write:
    """The last line of a whole write."""

    head: StateHead
    progress: bytes
    end: int


def read_head(fd: int, mark: Mark | None) -> Head:
    """The first line and the last state, without the entries between them.

    Raises:
        Damaged: there is no such thing in the file, or something that was saved is missing at its end.
    """
    length = os.fstat(fd).st_size
    origin, meta, start = _read_origin(fd)
    saved = _saved(origin, mark)
    write = _last_write(fd, length, start=start, saved=saved)
    if write.end < saved:
        raise Damaged(f"what follows byte {write.end} is not what was written, and it was saved up to byte {saved}")
    return _head(origin, meta, write, start=start, length=length, saved=saved)


def _head(origin: Origin, meta: bytes, write: _Write, *, start: int, length: int, saved: int) -> Head:
    return Head(
        origin=origin,
        meta=meta,
        state=write.head.state,
        progress=write.progress,
        start=start,
        end=write.end,
        length=length,
        # A new file is synced before it gets its name.
        safe=write.end <= saved or write.head.at == start,
    )


def _saved(origin: Origin, mark: Mark | None) -> int:
    """Up to where the journal is known to have been acknowledged."""
    return mark.saved if mark is not None and mark.journal == origin.journal else 0


def _read_origin(fd: int) -> tuple[Origin, bytes, int]:
    block = read_at(fd, _BLOCK, 0)
    while b"\n" not in block:
        more = read_at(fd, 4 * len(block), len(block))
        if not more:
            raise Damaged("its first line has no end")
        block += more
    end = block.index(b"\n") + 1
    try:
        return *parse_origin(block[:end]), end
    except NotALine as error:
        raise Damaged(f"its first line is not what was written: {error}") from error


def _last_write(fd: int, length: int, *, start: int, saved: int) -> _Write:
    """The last whole write, looked for backwards from the end of the file."""
    end, window = length, _BLOCK
    while end > start:
        begin = max(start, end - window)
        block = read_at(fd, end - begin, begin)
        found = _last_state(block, begin, at_line_start=begin == start)
        if found is None:
            if begin == start:
                break
            window *= 4
            continue
        # The state line may have reached the disk and what it commits not.
        if found.end <= saved or found.head.at == start or _commits(fd, found):
            return found
        end, window = min(found.head.at, end - 1), _BLOCK
    raise Damaged("no state of the run is left in it")


def _last_state(block: bytes, begin: int, *, at_line_start: bool) -> _Write | None:
    """The last state line in the block, which begins at the offset `begin` of the file."""
    line_end = block.rfind(b"\n")
    while line_end >= 0:
        line_start = block.rfind(b"\n", 0, line_end) + 1
        if line_start == 0 and not at_line_start:
            return None
        line = block[line_start : line_end + 1]
        if line.startswith(STATE_START):
            try:
                return _Write(*parse_state(line), begin + line_end + 1)
            except NotALine:
                pass
        line_end = line_start - 1
    return None


def _commits(fd: int, write: _Write) -> bool:
    written = read_at(fd, write.end - write.head.at, write.head.at)
    # The state line itself has no line end but its last.
    return checksum(written[: written.rfind(b"\n", 0, -1) + 1]) == write.head.sum


def read_journal(fd: int, mark: Mark | None) -> tuple[Head, Sequence[Entry]]:
    """All of it, every byte checked.

    Raises:
        Damaged: something that was saved is missing or is not what was written.
    """
    data = read_at(fd, os.fstat(fd).st_size, 0)
    origin, meta, start = _read_origin(fd)
    saved = _saved(origin, mark)
    entries: list[Entry] = []
    write: _Write | None = None
    end, trouble = start, ""
    while end < len(data):
        try:
            write = _read_write(data, end, entries)
        except NotALine as error:
            trouble = str(error)
            break
        end = write.end
    if write is None or end < saved or (trouble and _continued(data, end)):
        raise Damaged(f"what follows byte {end} is not what was written: {trouble or 'it ends there'}")
    _check_count(entries, write.head.state)
    return _head(origin, meta, write, start=start, length=len(data), saved=saved), entries


def _read_write(data: bytes, begin: int, entries: list[Entry]) -> _Write:
    """The write that begins there; its entries are added to `entries`."""
    found: list[Entry] = []
    position = begin
    while True:
        line_end = data.find(b"\n", position) + 1
        if not line_end:
            raise NotALine(f"the line at byte {position} has no end")
        line = data[position:line_end]
        try:
            if not line.startswith(STATE_START):
                found.append(parse_entry(line))
                position = line_end
                continue
            head, progress = parse_state(line)
        except NotALine as error:
            raise NotALine(f"the line at byte {position}: {error}") from error
        if head.at != begin or head.sum != checksum(data[begin:position]):
            raise NotALine(f"the line at byte {position} does not belong to the lines before it")
        entries.extend(found)
        return _Write(head, progress, line_end)


def _continued(data: bytes, end: int) -> bool:
    """Whether a later write follows: then the one at `end` was whole once."""
    position = data.find(b"\n", end) + 1
    while position:
        line_end = data.find(b"\n", position) + 1
        line = data[position:line_end]
        if line.startswith(STATE_START):
            try:
                if parse_state(line)[0].at > end:
                    return True
            except NotALine:
                pass
        position = line_end
    return False


def _check_count(entries: Sequence[Entry], state: State) -> None:
    """The entries are numbered without a gap up to the one that is due, and are as long as the state says."""
    first = state.next_seq - len(entries)
    gap = any(entry.seq != seq for seq, entry in enumerate(entries, first))
    if gap or sum(len(entry.body) for entry in entries) != state.size:
        raise Damaged("entries are missing")
