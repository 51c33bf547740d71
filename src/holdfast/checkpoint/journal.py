"""A run's journal: an append-only list of entries. Stores keep the entries of one write as one segment."""

import zlib
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

import msgspec


class EntryKind(StrEnum):
    """The kind of an entry. Stores keep it beside the body and never act on it."""

    #: The first entry of every journal: the format version and the run's info, prompt included.
    BEGIN = "begin"
    #: One message, appended to the conversation of the current phase.
    MESSAGE = "message"
    #: A tool result that is not in the conversation yet.
    RESULT = "result"
    #: Recorded tool results enter the conversation, in this order.
    ADOPT = "adopt"
    #: A step is finished: the progress and the time.
    STEP = "step"
    #: A phase is finished, with its output. A new conversation begins.
    PHASE = "phase"
    #: The outcome of the run: its output, or its error.
    OUTCOME = "outcome"
    #: A turn of a conversation begins: its id and number. Its messages follow.
    INPUT = "input"
    #: A turn has ended, with its output or error.
    TURN = "turn"
    #: An event for watchers, such as a retry. It is no part of the run's state.
    EVENT = "event"
    #: Reserved: a file of the run, by name.
    ATTACHMENT = "attachment"

    #: That of an enum is a Python function, which every save would call for every entry.
    __hash__ = str.__hash__


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record of a run's journal."""

    #: Counts up by one within a run, over rewrites too.
    seq: int
    kind: EntryKind
    #: One JSON value in UTF-8 when it comes from our codec. Opaque to stores: they never look inside.
    body: bytes

    def checksum(self) -> int:
        """A CRC over everything in the entry, for stores to keep beside it."""
        return zlib.crc32(self.body, zlib.crc32(b"%d %s " % (self.seq, self.kind.encode())))


class Append(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One atomic write to the journal of a run."""

    entries: Sequence[Entry]
    #: The run's progress, small, replaced as a whole. Opaque to stores; listings return it.
    progress: bytes
    #: The journal becomes exactly `entries`: the history was rewritten.
    rewrite: bool = False
    #: A step was finished since the last write: clears the run's strikes, and ends its backoff.
    step_finished: bool = False
    #: Ids of the mail that these entries use. The store refuses the write if one is not unread mail of the run.
    consumed: Sequence[str] = ()
    #: The write is refused with `UnreadMail` while the run has unread mail of these topics, not counting `consumed`.
    #: For entries that hold only if no such mail has arrived, such as the expiry of a wait.
    unless_mail: Sequence[str] = ()


#: How a layout writes a kind.
_LETTERS = {
    EntryKind.BEGIN: "b",
    EntryKind.MESSAGE: "m",
    EntryKind.RESULT: "r",
    EntryKind.ADOPT: "a",
    EntryKind.STEP: "s",
    EntryKind.PHASE: "p",
    EntryKind.OUTCOME: "o",
    EntryKind.INPUT: "i",
    EntryKind.TURN: "t",
    EntryKind.EVENT: "e",
    EntryKind.ATTACHMENT: "f",
}
_KIND_BY_LETTER = {letter: kind for kind, letter in _LETTERS.items()}


class Segment(NamedTuple):
    """The columns that hold the entries."""

    #: The number of the first entry.
    seq: int
    #: Kind and length of each: `m1040 m1012 s98` for two messages and the end of a step.
    layout: str
    #: CRC-32 over the other columns.
    checksum: int
    #: The bodies, concatenated.
    body: bytes


def pack_segment(entries: Sequence[Entry]) -> Segment:
    """Pack `entries`, at least one, into a segment.

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
        words.append(f"{_LETTERS[entry.kind]}{len(entry.body)}")
        bodies.append(entry.body)
    layout, body = " ".join(words), b"".join(bodies)
    # `Segment(...)` without its Python-level __new__: every save runs this.
    return tuple.__new__(Segment, (seq, layout, _segment_checksum(seq, layout, body), body))


def unpack_segments(segments: Iterable[tuple[int, str, int, bytes]]) -> list[Entry]:
    """Unpack the entries of consecutive segments.

    Raises:
        ValueError, LookupError: a segment is missing or corrupt.
    """
    entries: list[Entry] = []
    add, checksum_of, kinds = entries.append, _segment_checksum, _KIND_BY_LETTER
    due: int | None = None
    # One loop with few calls: it is most of the cost of a load.
    for seq, layout, checksum, body in segments:
        if type(body) is not bytes or checksum_of(seq, layout, body) != checksum:
            raise ValueError(f"the segment at entry {seq} does not match its checksum")
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


def _segment_checksum(seq: int, layout: str, body: bytes) -> int:
    return crc32(body, crc32(f"{seq} {layout} ".encode(errors="surrogateescape")))
