"""One write transaction: what the functions of `runs`, `claims` and `heartbeat` use."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import apsw

from holdfast.checkpoint.journal import Segment
from holdfast.stores.sqlite.database import statement

#: `Connection.execute`, for rows of any types.
Execute = Callable[..., Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


class Transaction:
    """The work of one group commit, between BEGIN and COMMIT."""

    def __init__(self, connection: apsw.Connection, now: datetime) -> None:
        self.execute: Execute = connection.execute
        self._last_insert_rowid = connection.last_insert_rowid
        self.now = now
        self.now_micros = to_micros(now)
        #: Whether other processes may wait for a change made here.
        self.notify = False
        #: Journals added to the table `garbage`.
        self.garbage_journals = 0
        self._token: int | None = None
        self._change_number = 0

    def next_token(self) -> int:
        """Return a number larger than any that this store has issued."""
        if self._token is None:
            self._read_counters()
        assert self._token is not None
        self._token += 1
        return self._token

    def insert_segment(self, run_key: int, previous: int, segment: Segment) -> int:
        """Add a segment behind segment `previous` (0: none) of the run. Return its key."""
        self.execute(statement("insert_segment"), (run_key, previous, *segment))
        return self._last_insert_rowid()

    def discard_journal(self, run_key: int, last_segment: int) -> None:
        """Leave the journal that ends with this segment to the garbage collection."""
        if last_segment:
            self.execute(statement("gc_add"), (last_segment, run_key))
            self.garbage_journals += 1

    def fetch_one(self, sql: str, bindings: tuple[Any, ...] = ()) -> Any:
        """Return the only row (its value, if it has one column), or `None`."""
        return self.execute(sql, bindings).get

    def read_change_number(self) -> int:
        self._read_counters()
        return self._change_number

    def flush_counters(self) -> int | None:
        """Write the counters back, just before COMMIT. Return the new change number, if others have to be notified."""
        if self.notify and self._token is None:
            self._read_counters()
        if self._token is None:
            return None
        if self.notify:
            self._change_number += 1
        self.execute(statement("write_counters"), (self._token, self._change_number))
        return self._change_number if self.notify else None

    def _read_counters(self) -> None:
        row = self.fetch_one(statement("read_counters"))
        if row is None or None in row:
            raise apsw.CorruptError("the counters of the store are missing")
        self._token, self._change_number = row
