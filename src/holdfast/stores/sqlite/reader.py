"""Threads that read, each on a connection of its own: they never wait for the writer, nor it for them.

From rows to records and journals, checked on the way.

How the database file stands: its version, its size, and whether SQLite finds it sound.

What is asked of the database without changing it.
"""

import asyncio
import contextlib
import json
import threading
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.checkpoint.errors import RunDamaged, RunNotFound, StoreClosed
from holdfast.checkpoint.journal import Entry, unpack_segments
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import StoreHealth
from holdfast.clock import Clock
from holdfast.stores.sqlite.database import Database, load_migrations, statement, store_errors
from holdfast.stores.sqlite.heartbeat import Liveness
from holdfast.stores.sqlite.transaction import Execute, from_micros

T = TypeVar("T")

#: Seconds without an answer after which the second thread helps. Most reads take a tenth of it.
_STALL_TIMEOUT_S = 0.005

ReadRequest = tuple[Callable[[Execute], Any], asyncio.Future[Any]]
_Resolve = Callable[[asyncio.Future[Any], object, Exception | None], None]


class ReaderThreads:
    """Do one read each at a time, in one transaction. Cheaper by half than an executor, and a load is short.

    One thread does it all, as long as it answers soon: two would take turns for the interpreter, and each would read
    for itself the pages that the other has already. Where a read takes long, be it a large one or a slow disk, the
    second takes what waits behind it.
    """

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self._queue: SimpleQueue[ReadRequest | None] = SimpleQueue()
        #: What the second thread waits for: True to help, False to end.
        self._help_requests: SimpleQueue[bool] = SimpleQueue()
        self._open = True
        self._pending = self._completed = 0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stopped = [loop.create_future() for _ in range(2)]
        for work, ended in zip((self._serve, self._help), self._stopped, strict=True):
            threading.Thread(target=work, args=(ended,), name="holdfast-sqlite-reader", daemon=True).start()

    def submit(self, work: Callable[[Execute], T]) -> asyncio.Future[T]:
        """Have `work` done in a read transaction. It leaves no statement half-read."""
        if not self._open:
            raise StoreClosed("this store is closed: nothing can be read")
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((work, done))
        self._pending += 1
        if self._pending > 1 and self._stall_timer is None:
            self._stall_timer = self._loop.call_later(_STALL_TIMEOUT_S, self._check_stalled, self._completed)
        return done

    async def stop(self) -> None:
        """Finish what was asked for, close the connections, end the threads."""
        self._open = False
        self._queue.put(None)
        self._help_requests.put(False)
        await asyncio.gather(*self._stopped)
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _check_stalled(self, completed: int) -> None:
        """Call the second thread if something waits and there was no answer for a while."""
        self._stall_timer = None
        if self._pending > 1:
            if self._completed == completed:
                self._help_requests.put(True)
            self._stall_timer = self._loop.call_later(_STALL_TIMEOUT_S, self._check_stalled, self._completed)

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _serve(self, ended: asyncio.Future[None]) -> None:
        connection: apsw.Connection | None = None
        while (asked := self._queue.get()) is not None:
            connection = self._process(connection, *asked)
            # Not until the next job comes: a whole transcript may hang on them.
            del asked
        self._stop_thread(connection, ended)

    def _help(self, ended: asyncio.Future[None]) -> None:
        connection: apsw.Connection | None = None
        while self._help_requests.get():
            with contextlib.suppress(Empty):
                while (asked := self._queue.get_nowait()) is not None:
                    connection = self._process(connection, *asked)
                    del asked
                self._queue.put(None)  # the end of the other
        self._stop_thread(connection, ended)

    def _stop_thread(self, connection: apsw.Connection | None, ended: asyncio.Future[None]) -> None:
        if connection is not None:
            connection.close()
        self._post_to_loop(_resolve_future, ended, None, None)

    def _process(
        self, connection: apsw.Connection | None, work: Callable[[Execute], Any], future: asyncio.Future[Any]
    ) -> apsw.Connection | None:
        """Do the work and say what came of it. Gives the connection, which is opened for the first."""
        try:
            connection = connection or self._database.connect_reader()
            result = self._read(connection, work)
        except Exception as exc:  # whatever it is, it belongs to the one who asked
            self._post_to_loop(self._on_completed, future, None, exc)
        else:
            self._post_to_loop(self._on_completed, future, result, None)
        return connection

    def _read(self, connection: apsw.Connection, work: Callable[[Execute], T]) -> T:
        with store_errors(self._database.path, connection):
            # One cursor for all statements of a read, each of which is read to its end before the next.
            execute = connection.cursor().execute
            execute("BEGIN")
            try:
                result = work(execute)
            except BaseException:
                # After some errors SQLite has ended it by itself. After others it refuses to commit, though nothing
                # was written: that would hide which run is damaged.
                if connection.in_transaction:
                    execute("ROLLBACK")
                raise
            execute("COMMIT")
            return result

    def _post_to_loop(
        self, resolve: _Resolve, future: asyncio.Future[Any], result: object, error: Exception | None
    ) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(resolve, future, result, error)

    # -- in the event loop again --------------------------------------------------------------------------------------

    def _on_completed(self, future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        self._pending -= 1
        self._completed += 1
        _resolve_future(future, result, error)


def _resolve_future(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_KEYS_DECODER = msgspec.json.Decoder(list[int])
_GET_SEQ = itemgetter(0)


def make_record(row: Sequence[Any], alive: bool) -> RunRecord:
    """The record in a row of the columns `{record}`.

    Args:
        alive: whether the worker named in the row is.
    """
    status = RunStatus(row[5])
    return RunRecord(
        run_id=row[1],
        agent_name=row[2],
        caller_id=row[3],
        parent_run_id=row[4],
        status=status,
        created_at=from_micros(row[6]),
        updated_at=from_micros(row[7]),
        owner=row[8],
        owner_alive=alive and status is RunStatus.RUNNING,
        token=row[9],
        strikes=row[10],
        not_before=from_micros(row[11]),
        reason=row[12],
        cancel_requested=bool(row[13]),
        expires_at=None if row[14] is None else from_micros(row[14]),
        next_seq=row[15],
        size=row[16],
        meta=row[17],
        progress=row[18],
    )


def decode_keys(columns: Iterable[str], run_id: str) -> list[int]:
    """The keys of pieces, from the columns that name many of them.

    Raises:
        RunDamaged: one of those cannot be read.
    """
    keys: list[int] = []
    try:
        for column in columns:
            keys += _KEYS_DECODER.decode(column)
    except msgspec.MsgspecError as exc:
        raise RunDamaged(run_id, f"the way to its entries is lost ({exc})") from exc
    return keys


def unpack_journal(segments: list[tuple[Any, ...]], run_id: str, seqs: range) -> tuple[Entry, ...]:
    """The entries numbered `seqs`, from the pieces that hold them, in any order. There may be older pieces with them.

    Raises:
        RunDamaged: an entry is missing, or is not what was written.
    """
    try:
        segments.sort(key=_GET_SEQ)
        first = bisect_right(segments, seqs.start, key=_GET_SEQ) - 1
        entries = unpack_segments(segments[max(first, 0) :])
    except (ValueError, LookupError) as exc:
        raise RunDamaged(run_id, str(exc)) from exc
    if first < 0:
        raise RunDamaged(run_id, f"entry {seqs.start} is missing")
    if entries[-1].seq != seqs.stop - 1:
        raise RunDamaged(run_id, f"its last entry is {entries[-1].seq}, and not {seqs.stop - 1}")
    return tuple(entries[seqs.start - entries[0].seq :])


#: A damaged file may have any number of complaints; a few say enough.
_MAX_PROBLEMS = 5


def check_health(execute: Execute, path: Path) -> StoreHealth:
    """Read the whole file once."""
    version, page_size, free_pages = (
        execute(f"PRAGMA {name}").get for name in ("user_version", "page_size", "freelist_count")
    )
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    return StoreHealth(
        version=version,
        known_version=len(load_migrations()),
        size=sum(file.stat().st_size for file in files if file.exists()),
        free=page_size * free_pages,
        problems=_find_problems(execute),
    )


def _find_problems(execute: Execute) -> list[str]:
    try:
        complaints = execute(f"PRAGMA quick_check({_MAX_PROBLEMS})").fetchall()
    except apsw.CorruptError as exc:
        return [f"the file cannot be read through: {exc}"]
    return [text for (complaint,) in complaints if complaint != "ok" for text in str(complaint).splitlines()]


#: Records read at once. Between two pages no transaction is open: one that stays open keeps the log from starting over.
_PAGE_SIZE = 500

_LOAD_RECORD, _READ_SEGMENT, _READ_SEGMENTS = (
    statement(name) for name in ("load_record", "read_segment", "read_segments")
)


class Reader:
    """Reads runs and records."""

    def __init__(self, database: Database, clock: Clock, lease_timeout: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._lease_timeout = lease_timeout
        self._threads = ReaderThreads(database, asyncio.get_running_loop())

    async def load(self, run_id: str, after: int) -> StoredRun:
        return await self._threads.submit(lambda execute: self._load(execute, run_id, after))

    async def pending_cancellations(self, worker_id: str) -> tuple[str, ...]:
        return await self._threads.submit(
            lambda execute: tuple(
                row[0] for row in execute(statement("pending_cancellations"), (worker_id,)).fetchall()
            )
        )

    async def list_runs(self, filter: RunFilter) -> AsyncIterator[RunRecord]:
        last_key: int | None = -1
        while last_key is not None:
            reached = last_key
            records, last_key = await self._threads.submit(lambda execute: self._read_page(execute, filter, reached))  # noqa: B023
            for record in records:
                yield record

    async def check_health(self) -> StoreHealth:
        return await self._threads.submit(lambda execute: check_health(execute, self._database.path))

    async def close(self) -> None:
        """Let the reads under way end, then let go of everything."""
        await self._threads.stop()

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _load(self, execute: Execute, run_id: str, after: int) -> StoredRun:
        row = execute(_LOAD_RECORD, (run_id,)).get
        if row is None:
            raise RunNotFound(run_id)
        first_seq, last_piece, *columns = row
        liveness = Liveness(execute, self._clock.now(), self._lease_timeout)
        try:
            record = make_record(columns, columns[5] == RunStatus.RUNNING and liveness.is_alive(columns[8]))
        except (ValueError, OverflowError, TypeError) as exc:
            raise RunDamaged(run_id, f"its record is not what was written ({exc})") from exc
        seqs = range(max(first_seq, after + 1), record.next_seq)
        try:
            entries = self._read_journal(execute, columns[0], run_id, last_piece, seqs) if seqs else ()
        except (apsw.CorruptError, UnicodeDecodeError, TypeError) as exc:  # the last: what was a number is none now
            raise RunDamaged(run_id, f"its part of the file cannot be read ({exc})") from exc
        return StoredRun(record=record, entries=entries)

    def _read_journal(
        self, execute: Execute, run_key: int, run_id: str, last_segment: int, seqs: range
    ) -> tuple[Entry, ...]:
        """Backwards from piece to piece, as far as is asked for; then all that the way passed over, at once."""
        pieces: list[tuple[Any, ...]] = []
        passed: list[str] = []
        key = last_segment
        # A statement for every piece on the way takes half as long as a recursive one for all.
        while (found := execute(_READ_SEGMENT, (key, run_key)).get) is not None:
            before, names, seq = found[:3]
            pieces.append(found[2:])
            # Keys have to fall: damage makes no circles.
            if seq <= seqs.start or not 0 < before < key:
                break
            if names is not None:
                passed.append(names)
            key = before
        if passed:
            keys = msgspec.json.encode(decode_keys(passed, run_id)).decode()
            # All rows at once: a statement left in the middle would keep its view of the database.
            pieces += execute(_READ_SEGMENTS, (keys, run_key)).fetchall()
        return unpack_journal(pieces, run_id, seqs)

    def _read_page(self, execute: Execute, filter: RunFilter, after: int) -> tuple[list[RunRecord], int | None]:
        """The next records that fit, and the key to go on from; `None` if these were the last."""
        statuses = None if filter.statuses is None else json.dumps(sorted(filter.statuses))
        bindings = (after, statuses, filter.agent_name, filter.caller_id, _PAGE_SIZE, filter.parent_run_id)
        what = "list_runs" if filter.parent_run_id is None else "list_children"
        rows = execute(
            statement("list_unfinished" if filter.interrupted else what),
            bindings if what == "list_children" or filter.interrupted else bindings[:5],
        ).fetchall()
        alive = Liveness(execute, self._clock.now(), self._lease_timeout).alive_workers()
        records = [make_record(row, row[8] in alive) for row in rows]
        if filter.interrupted:
            records = [record for record in records if record.is_interrupted]
        return records, rows[-1][0] if len(rows) == _PAGE_SIZE else None
