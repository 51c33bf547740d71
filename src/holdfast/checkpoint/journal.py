"""A run's journal: the append-only list of entries from which its checkpoint is read."""

import zlib
from collections.abc import Sequence
from enum import StrEnum

import msgspec


class EntryKind(StrEnum):
    """What an entry says. Stores keep it beside the body and never act on it."""

    #: The first entry of every journal: the format version and the run's meta, prompt included.
    BEGIN = "begin"
    #: One message, appended to the conversation of the current phase.
    MESSAGE = "message"
    #: A tool result that is not in the conversation yet.
    RESULT = "result"
    #: Recorded tool results enter the conversation, in this order.
    ADOPT = "adopt"
    #: A step is finished: how far the run had come by then, and when.
    STEP = "step"
    #: A phase is finished, with its output. The conversation starts anew.
    PHASE = "phase"
    #: The run is over: its output, or its error.
    OUTCOME = "outcome"


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


class Write(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one save hands to a store: all of it is written, or none."""

    entries: Sequence[Entry]
    #: The run's progress, small, replaced as a whole. Opaque to stores; listings hand it out.
    progress: bytes
    #: The journal becomes exactly `entries`: the history was rewritten.
    replace: bool = False
    #: A step was finished since the last write: clears the run's strikes, and ends its backoff.
    finished_step: bool = False
