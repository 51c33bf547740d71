"""A piece of a journal: the entries of one write, kept as one row, which costs about the same however much is in it."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

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
    seq = entries[0].seq
    for due, entry in enumerate(entries, seq):
        if entry.seq != due:
            raise ValueError(f"entry {entry.seq} came where {due} is due")
    layout = " ".join([f"{entry.kind[0]}{len(entry.body)}" for entry in entries])
    body = b"".join([entry.body for entry in entries])
    return Piece(seq, layout, _checksum(seq, layout, body), body)


def unpacked(seq: int, layout: str, checksum: int, body: bytes) -> list[Entry]:
    """The entries of a piece again.

    Raises:
        ValueError: it is not what was written.
    """
    if type(body) is not bytes or _checksum(seq, layout, body) != checksum:
        raise ValueError("the checksum does not fit")
    entries: list[Entry] = []
    start = 0
    for word in layout.split(" "):
        end = start + int(word[1:])
        entries.append(Entry(seq=seq, kind=_KINDS[word[0]], body=body[start:end]))
        seq, start = seq + 1, end
    return entries


def _checksum(seq: int, layout: str, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(b"%d %s " % (seq, layout.encode(errors="surrogateescape"))))
