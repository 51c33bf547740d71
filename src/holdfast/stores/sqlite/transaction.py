"""One write transaction, and the row of a run that it decides by."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import apsw

from holdfast.checkpoint.journal import Segment
from holdfast.checkpoint.record import RunStatus
from holdfast.stores.sqlite.database import statement

#: `Connection.execute`, for rows of any types.
Execute = Callable[..., Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:  # a damaged row: a listing still shows it
        return _LATEST


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


class RunRow(NamedTuple):
    run_key: int
    token: int
    status: RunStatus
    next_seq: int
    owner: str | None
    strikes: int
    reason: str
    #: Key of the last segment of the journal; 0: the journal is empty.
    last_segment: int
    #: The number of unread mails.
    unread: int
    wake_at: int | None
    #: JSON.
    wake_on: str
    agent_name: str
    shares_parent_slot: bool
    #: Empty for a run without one.
    key: str

    def is_due(self, now_micros: int) -> bool:
        """Whether it waits for a time that has come."""
        return self.status is RunStatus.WAITING and self.wake_at is not None and self.wake_at <= now_micros

    def waits_for(self, topic: str) -> bool:
        return self.status is RunStatus.WAITING and topic in json.loads(self.wake_on)


def find_run(run_id: str, transaction: Transaction) -> RunRow | None:
    row = transaction.fetch_one(statement("run_row"), (run_id,))
    if row is None:
        return None
    run_key, token, status, *rest = row
    if status is None:
        raise apsw.CorruptError(f"the record of run {run_id} is missing")
    return RunRow(run_key, token, RunStatus(status), *rest)
