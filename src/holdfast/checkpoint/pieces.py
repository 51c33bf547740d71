"""A piece of a journal: the entries of one write, kept as one row, which costs about the same however much is in it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from zlib import crc32

from holdfast.checkpoint.journal import Entry, EntryKind

#: In a layout a kind is its first letter: no two have the same.
_KINDS = {kind.value[0]: kind for kind in EntryKind}
assert len(_KINDS) == len(EntryKind)


class Piece(NamedTuple):
    """The columns that hold the entries."""

    #: The number of the first entry.
    seq: int
    #: Kind and length of each: `m1040 m1012 s98` for two messages and the end of a step.
    layout: str
    #: Over all of it.
    checksum: int
    #: The bodies, one behind the other.
    body: bytes


def packed(entries: Sequence[Entry]) -> Piece:
    """`entries`, of which there is at least one, as a piece.

    Raises:
        ValueError: they do not count up.
    """
    seq = due = entries[0].seq
    words: list[str] = []
    bodies: list[bytes] = []
    for entry in entries:
        if entry.seq != due:
            raise ValueError(f"entry {entry.seq} came where {due} is due")
        due += 1
        words.append(f"{entry.kind[0]}{len(entry.body)}")
        bodies.append(entry.body)
    layout, body = " ".join(words), b"".join(bodies)
    # What `Piece(...)` does, without a Python function in between: every save comes by here.
    return tuple.__new__(Piece, (seq, layout, _checksum(seq, layout, body), body))


def unpacked(pieces: Iterable[tuple[int, str, int, bytes]]) -> list[Entry]:
    """The entries of pieces that follow one another.

    Raises:
        ValueError: one of them is missing, or is not what was written.
        LookupError: the same.
    """
    entries: list[Entry] = []
    add, checksum_of, kinds = entries.append, _checksum, _KINDS
    due: int | None = None
    # One loop, and no call that it can do without: what a load costs is mostly this.
    for seq, layout, checksum, body in pieces:
        if type(body) is not bytes or checksum_of(seq, layout, body) != checksum:
            raise ValueError(f"what begins with entry {seq} is not what was written")
        if seq != due is not None:
            raise ValueError(f"entry {due} is missing")
        *words, last = layout.split(" ")
        start = 0
        for word in words:
            end = start + int(word[1:])
            add(Entry(seq=seq, kind=kinds[word[0]], body=body[start:end]))
            seq, start = seq + 1, end
        add(Entry(seq=seq, kind=kinds[last[0]], body=body[start:]))
        due = seq + 1
    return entries


def _checksum(seq: int, layout: str, body: bytes) -> int:
    return crc32(body, crc32(f"{seq} {layout} ".encode(errors="surrogateescape")))
