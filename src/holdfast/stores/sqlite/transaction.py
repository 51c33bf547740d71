"""One transaction of the writer: what it may use, and what it counts on the way."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast.checkpoint.journal import Segment
from holdfast.stores.sqlite.database import statement

#: `execute` of a connection, for rows of whatever types.
Execute = Callable[..., Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Every so many pieces, one names those before it.
_SKIP_EVERY = 16

#: Enough for the runs that one process drives at once.
_MAX_CACHED_TAILS = 10_000

_INSERT_SEGMENT = statement("insert_segment")
_ADD_GARBAGE = statement("gc_add")


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class JournalTail(NamedTuple):
    """Where a journal ends."""

    run_key: int
    #: 0: it is empty.
    last_segment: int
    #: The last pieces, oldest first, as far back as is known: at most to one that names many.
    recent_keys: tuple[int, ...]


def make_skip_pointer(recent_keys: tuple[int, ...]) -> tuple[int | None, str | None, tuple[int, ...]]:
    """What the next piece says of those before it: every so often it names many. And which it leaves unnamed."""
    if len(recent_keys) < _SKIP_EVERY:
        return None, None, recent_keys
    return recent_keys[0], msgspec.json.encode(recent_keys[1:]).decode(), ()


def next_row(tail: JournalTail, key: int, segment: Segment) -> tuple[tuple[Any, ...], JournalTail]:
    """The row that puts a piece, under a new key, behind the journal's end; and the journal's end then."""
    run_key, before, recent = tail
    far, passed, recent = make_skip_pointer(recent)
    return (key, run_key, before, far, passed, *segment), JournalTail(run_key, key, (*recent, key))


class WriteCache:
    """What one connection has left in the file, by heart. Others write, too: a write that relies on it checks it."""

    __slots__ = ("last_key", "tails")

    def __init__(self) -> None:
        #: By token: what the last write under each claim left.
        self.tails: dict[int, JournalTail] = {}
        #: Of all pieces the newest.
        self.last_key: int | None = None

    def store_tails(self, tails: Mapping[int, JournalTail]) -> None:
        if len(self.tails) >= _MAX_CACHED_TAILS:
            self.tails.clear()
        self.tails.update(tails)


class Transaction:
    """The work of one group commit, between BEGIN and COMMIT."""

    def __init__(self, connection: apsw.Connection, cursor: apsw.Cursor, now: datetime, cache: WriteCache) -> None:
        """`cursor` is for statements without results; `known` is kept from one transaction to the next."""
        self.execute: Execute = connection.execute
        self.cursor = cursor
        self._count_changes = connection.changes
        self.now = now
        self.now_micros = to_micros(now)
        self.cache = cache
        #: Whether another process may wait for something that was done here.
        self.notify = False
        #: How many journals were left for the sweep.
        self.garbage_journals = 0
        self._token: int | None = None
        self._change_number = 0
        # Within the transaction nobody else writes; since the last one somebody may have.
        cache.last_key = None

    def execute_update(self, sql: str, bindings: Sequence[Any]) -> int:
        """How many rows the statement changed."""
        self.cursor.execute(sql, bindings)
        return self._count_changes()

    def next_token(self) -> int:
        """A number larger than any this store has given."""
        if self._token is None:
            self._read_counters()
        assert self._token is not None
        self._token += 1
        return self._token

    def next_key(self) -> int:
        """A key for a new piece, larger than those of all pieces there are."""
        self.cache.last_key = self.load_last_key() + 1
        return self.cache.last_key

    def load_last_key(self) -> int:
        """Of all pieces. From here to the end of the transaction it is known by heart."""
        if self.cache.last_key is None:
            self.cache.last_key = self.fetch_one(statement("last_segment_key"))
        newest: int = self.cache.last_key
        return newest

    def insert_segment(self, row: tuple[Any, ...]) -> None:
        self.cursor.execute(_INSERT_SEGMENT, row)

    def discard_journal(self, run_key: int, last_segment: int) -> None:
        """Leave the journal that ends there to the sweep. It can be reached no more."""
        if last_segment:
            self.execute(_ADD_GARBAGE, (last_segment, run_key))
            self.garbage_journals += 1

    def fetch_one(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """The only row (its only value, if it has just one), or `None`."""
        return self.execute(sql, bindings).get

    def read_change_number(self) -> int:
        self._read_counters()
        return self._change_number

    def flush_counters(self) -> int | None:
        """Write back what was counted, just before COMMIT. Gives the signal, if there is one."""
        if self.notify and self._token is None:
            self._read_counters()
        if self._token is None:
            return None
        if self.notify:
            self._change_number += 1
        self.execute(statement("write_counters"), (self._token, self._change_number))
        return self._change_number if self.notify else None

    def _read_counters(self) -> None:
        self._token, self._change_number = self.fetch_one(statement("read_counters"))
