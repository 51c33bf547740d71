"""One transaction of the writer: what it may use, and what it counts on the way."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast.checkpoint.pieces import Piece
from holdfast.checkpoint.stores.sqlite.statements import statement

#: `execute` of a connection, for rows of whatever types.
Execute = Callable[..., Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

#: Every so many pieces, one names those before it.
_STRIDE = 16

#: Enough for the runs that one process drives at once.
_HEADS_KEPT = 10_000

_INSERT_PIECE = statement("insert_piece")
_ADD_GARBAGE = statement("add_garbage")


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class Head(NamedTuple):
    """Where a journal ends."""

    run_key: int
    #: 0: it is empty.
    last_piece: int
    #: The last pieces, oldest first, as far back as is known: at most to one that names many.
    recent: tuple[int, ...]


def leap(recent: tuple[int, ...]) -> tuple[int | None, str | None, tuple[int, ...]]:
    """What the next piece says of those before it: every so often it names many. And which it leaves unnamed."""
    if len(recent) < _STRIDE:
        return None, None, recent
    return recent[0], msgspec.json.encode(recent[1:]).decode(), ()


def row_behind(head: Head, key: int, piece: Piece) -> tuple[tuple[Any, ...], Head]:
    """The row that puts a piece, under a new key, behind the journal's end; and the journal's end then."""
    run_key, before, recent = head
    far, passed, recent = leap(recent)
    return (key, run_key, before, far, passed, *piece), Head(run_key, key, (*recent, key))


class Known:
    """What one connection has left in the file, by heart. Others write, too: a write that relies on it checks it."""

    __slots__ = ("heads", "last_key")

    def __init__(self) -> None:
        #: By token: what the last write under each claim left.
        self.heads: dict[int, Head] = {}
        #: Of all pieces the newest.
        self.last_key: int | None = None

    def remember(self, heads: Mapping[int, Head]) -> None:
        if len(self.heads) >= _HEADS_KEPT:
            self.heads.clear()
        self.heads.update(heads)


class Transaction:
    """The work of one group commit, between BEGIN and COMMIT."""

    def __init__(self, connection: apsw.Connection, cursor: apsw.Cursor, now: datetime, known: Known) -> None:
        """`cursor` is for statements without results; `known` is kept from one transaction to the next."""
        self.execute: Execute = connection.execute
        self.cursor = cursor
        self._changes = connection.changes
        self.now = now
        self.now_micros = to_micros(now)
        self.known = known
        #: Whether another process may wait for something that was done here.
        self.signals = False
        #: How many journals were left for the sweep.
        self.littered = 0
        self._token: int | None = None
        self._signal = 0
        # Within the transaction nobody else writes; since the last one somebody may have.
        known.last_key = None

    def changes(self, sql: str, bindings: Sequence[Any]) -> int:
        """How many rows the statement changed."""
        self.cursor.execute(sql, bindings)
        return self._changes()

    def next_token(self) -> int:
        """A number larger than any this store has given."""
        if self._token is None:
            self._read_counters()
        assert self._token is not None
        self._token += 1
        return self._token

    def next_key(self) -> int:
        """A key for a new piece, larger than those of all pieces there are."""
        self.known.last_key = self.learn_newest_key() + 1
        return self.known.last_key

    def learn_newest_key(self) -> int:
        """Of all pieces. From here to the end of the transaction it is known by heart."""
        if self.known.last_key is None:
            self.known.last_key = self.one(statement("last_piece_key"))
        newest: int = self.known.last_key
        return newest

    def insert_piece(self, row: tuple[Any, ...]) -> None:
        self.cursor.execute(_INSERT_PIECE, row)

    def discard_journal(self, run_key: int, last_piece: int) -> None:
        """Leave the journal that ends there to the sweep. It can be reached no more."""
        if last_piece:
            self.execute(_ADD_GARBAGE, (last_piece, run_key))
            self.littered += 1

    def one(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """The only row (its only value, if it has just one), or `None`."""
        return self.execute(sql, bindings).get

    def newest_signal(self) -> int:
        self._read_counters()
        return self._signal

    def finish(self) -> int | None:
        """Write back what was counted, just before COMMIT. Gives the signal, if there is one."""
        if self.signals and self._token is None:
            self._read_counters()
        if self._token is None:
            return None
        if self.signals:
            self._signal += 1
        self.execute(statement("write_counters"), (self._token, self._signal))
        return self._signal if self.signals else None

    def _read_counters(self) -> None:
        self._token, self._signal = self.one(statement("read_counters"))
