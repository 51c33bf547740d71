"""Cursors: places in the event stream of a run, as opaque text."""

import re
from datetime import datetime
from typing import NamedTuple, Self

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import RunRecord

_PATTERN = re.compile(r"([0-9a-f]{1,16})-([0-9]{1,18})-([0-9]{1,9})", re.ASCII)


class Cursor(NamedTuple):
    """The place after one durable event."""

    #: Tells the run apart from an earlier one with the same id.
    incarnation: str
    #: The number of the journal entry, and of the event within it.
    seq: int
    place: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cursor.

        Raises:
            InvalidCursor: the text is none.
        """
        match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidCursor(str(text))
        return cls(match[1], int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.seq}-{self.place}"


def get_incarnation(created_at: datetime) -> str:
    """Return what the cursors of a run begin with."""
    return f"{int(created_at.timestamp() * 1_000_000):x}"


def check_cursor(cursor: Cursor, record: RunRecord) -> None:
    """Refuse a cursor of another run, or one that this run has not reached.

    Raises:
        InvalidCursor: it is such a cursor.
    """
    if cursor.incarnation != get_incarnation(record.created_at) or cursor.seq >= record.next_seq:
        raise InvalidCursor(str(cursor))
