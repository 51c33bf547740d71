"""One write transaction, and the row of a run that it decides by."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, NamedTuple

import apsw

from holdfast.checkpoint.journal import Segment
from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import RunError
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
        self.connection = connection
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


class WriteRequest:
    """One caller's write and its outcome."""

    __slots__ = ("arguments", "error", "future", "is_alone", "result", "run_id", "work")

    def __init__(
        self, run_id: str | None, work: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        self.run_id = run_id
        self.work = work
        self.arguments = arguments
        self.future = future
        #: It is committed in a transaction of its own.
        self.is_alone = False
        self.result: Any = None
        self.error: Exception | None = None

    def resolve(self) -> None:
        """Resume the caller. Only in the event loop's thread."""
        resolve_future(self.future, self.result, self.error)


def resolve_future(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def answer_call(function: Callable[[], Any], answers: "SimpleQueue[Any]") -> None:
    """Call a function for another thread, which waits for its value or error in the queue."""
    try:
        answers.put((function(), None))
    except BaseException as exc:  # of any kind: the thread raises it
        answers.put((None, exc))


class RolledBack(Exception):
    """A transaction was rolled back because the user's function, or its append, raised this error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(repr(error))
        self.error = error


class SqliteRows:
    """The rows that a statement returned."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int) -> None:
        self._rows = iter(rows)
        #: The number of rows that an INSERT, UPDATE or DELETE changed.
        self.rowcount = rowcount

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; `None` after the last one."""
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows


class SqliteConnection:
    """The store's database, for the function of one `transaction` tool. It ends with the function.

    It cannot end the transaction, and changes no setting of the database.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection: apsw.Connection | None = connection
        connection.authorizer = _authorize

    def execute(self, sql: str, bindings: Sequence[Any] | Mapping[str, Any] = ()) -> SqliteRows:
        """Execute a statement, with values for `?` or `:name` in it. An error is one of `apsw`."""
        return self._run(sql, bindings, many=False)

    def executemany(self, sql: str, bindings: Iterable[Sequence[Any] | Mapping[str, Any]]) -> SqliteRows:
        """Execute a statement once for each of the bindings."""
        return self._run(sql, bindings, many=True)

    def _run(self, sql: str, bindings: Any, *, many: bool) -> SqliteRows:
        if self._connection is None:
            raise RunError("this connection belongs to a transaction that has ended")
        before = self._connection.total_changes()
        cursor = self._connection.cursor()
        rows = list(cursor.executemany(sql, bindings) if many else cursor.execute(sql, bindings))
        return SqliteRows(rows, self._connection.total_changes() - before)

    def close(self) -> None:
        """End it: the function has returned."""
        if self._connection is not None:
            self._connection.authorizer = None
        self._connection = None


#: What the function of a transaction must not do, by the action codes of SQLite.
_REFUSED_ACTIONS = frozenset({apsw.SQLITE_TRANSACTION, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_PRAGMA})


def _authorize(action: int, *about: str | None) -> int:
    return apsw.SQLITE_DENY if action in _REFUSED_ACTIONS else apsw.SQLITE_OK


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
    cancel_requested: bool

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
