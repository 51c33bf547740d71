"""Reads: threads with their own connections, which neither wait for the writer nor block it."""

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime
from functools import partial
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from holdfast.checkpoint.errors import RunDamaged, RunNotFound, StoreClosed
from holdfast.checkpoint.journal import Entry, unpack_segments
from holdfast.checkpoint.record import Pending, RunFilter, RunPage, RunStatus, StoredRun
from holdfast.checkpoint.store import RECORD_ONLY, StoreHealth
from holdfast.checkpoint.workers import Fleet, LimitUsage, WorkerHeartbeat, merge_rows
from holdfast.concurrency import THREADS
from holdfast.db.sqlite_file import FILE_CHECK_INTERVAL_S
from holdfast.stores.sqlite.claiming import list_usage
from holdfast.stores.sqlite.database import Database, load_migrations, statement
from holdfast.stores.sqlite.drafts import read_draft
from holdfast.stores.sqlite.listing import (
    NEWEST,
    OLDEST,
    Direction,
    make_record,
    parse_cursor,
    read_counts,
    read_page,
)
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.runs import read_unread_mail
from holdfast.stores.sqlite.transaction import Execute, resolve_future, to_micros

T = TypeVar("T")

#: Seconds without an answer after which the second thread helps. Most reads take a tenth of it.
_STALL_TIMEOUT_S = 0.005

#: A damaged file may have any number of problems.
_MAX_PROBLEMS = 5

ReadRequest = tuple[Callable[[Execute], Any], asyncio.Future[Any]]
_GET_SEQ = itemgetter(0)


class ReaderThreads:
    """Two threads that read, each request in one transaction.

    The first thread serves all requests while it is fast: two would compete for the GIL, and each would fill its own
    page cache. If a read takes long (a long run, a slow disk), the second thread serves the requests behind it.
    """

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        threads = THREADS.get()
        self._monotonic, self._files_checked_at = threads.monotonic, 0.0
        #: `None` stops the first thread.
        self._queue: SimpleQueue[ReadRequest | None] = threads.make_queue()
        #: Wakes the second thread: True to help, False to stop.
        self._help_requests: SimpleQueue[bool] = threads.make_queue()
        self._open = True
        self._pending = self._completed = 0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._stopped = [loop.create_future() for _ in range(2)]
        for work, stopped in zip((self._serve, self._help), self._stopped, strict=True):
            threads.start(partial(work, stopped), name="holdfast-sqlite-reader")

    def submit(self, work: Callable[[Execute], T]) -> asyncio.Future[T]:
        """Call `work` in a read transaction. It must fetch all rows of each statement."""
        if not self._open:
            raise StoreClosed("this store is closed: nothing can be read")
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((work, future))
        self._pending += 1
        if self._pending > 1 and self._stall_timer is None:
            self._stall_timer = self._loop.call_later(_STALL_TIMEOUT_S, self._check_stalled, self._completed)
        return future

    def abandon(self) -> None:
        """End the threads when the submitted reads are finished."""
        self._open = False
        self._queue.put(None)
        self._help_requests.put(False)

    async def stop(self) -> None:
        """Finish the submitted reads, close the connections, end the threads."""
        self.abandon()
        await asyncio.gather(*self._stopped)
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def _check_stalled(self, completed: int) -> None:
        """Wake the second thread if requests wait and none was completed since the timer started."""
        self._stall_timer = None
        if self._pending > 1:
            if self._completed == completed:
                self._help_requests.put(True)
            self._stall_timer = self._loop.call_later(_STALL_TIMEOUT_S, self._check_stalled, self._completed)

    def _on_completed(self, future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        self._pending -= 1
        self._completed += 1
        resolve_future(future, result, error)

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _serve(self, stopped: asyncio.Future[None]) -> None:
        connection: apsw.Connection | None = None
        while (request := self._queue.get()) is not None:
            connection = self._process(connection, *request)
            del request  # it may keep a whole transcript alive until the next request
        self._stop_thread(connection, stopped)

    def _help(self, stopped: asyncio.Future[None]) -> None:
        connection: apsw.Connection | None = None
        while self._help_requests.get():
            with contextlib.suppress(Empty):
                while (request := self._queue.get_nowait()) is not None:
                    connection = self._process(connection, *request)
                    del request
                self._queue.put(None)  # it was for the first thread
        self._stop_thread(connection, stopped)

    def _stop_thread(self, connection: apsw.Connection | None, stopped: asyncio.Future[None]) -> None:
        if connection is not None:
            connection.close()
        self._post_to_loop(resolve_future, stopped, None, None)

    def _process(
        self, connection: apsw.Connection | None, work: Callable[[Execute], Any], future: asyncio.Future[Any]
    ) -> apsw.Connection | None:
        """Serve one request. Return the connection, which the first request opens."""
        try:
            connection = connection or self._database.connect_reader()
            self._check_files()
            result = self._read(connection, work)
        except Exception as exc:  # any error belongs to the caller
            self._post_to_loop(self._on_completed, future, None, exc)
        else:
            self._post_to_loop(self._on_completed, future, result, None)
        return connection

    def _check_files(self) -> None:
        now = self._monotonic()
        if now - self._files_checked_at >= FILE_CHECK_INTERVAL_S:
            self._database.check_files()
            self._files_checked_at = now

    def _read(self, connection: apsw.Connection, work: Callable[[Execute], T]) -> T:
        with self._database.mapped_errors(connection):
            execute = connection.cursor().execute
            execute("BEGIN")
            try:
                result = work(execute)
            except BaseException:
                # After some errors SQLite refuses to commit, which would hide the error; after others it has rolled
                # back by itself.
                if connection.in_transaction:
                    execute("ROLLBACK")
                raise
            execute("COMMIT")
            return result

    def _post_to_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        # RuntimeError: the loop is closed, so no task waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


class Reader:
    """Reads runs and records."""

    def __init__(self, database: Database, liveness: Liveness) -> None:
        self._database = database
        self._liveness = liveness
        self._threads = ReaderThreads(database, asyncio.get_running_loop())

    async def load(self, run_id: str, after: int) -> StoredRun:
        return await self._threads.submit(partial(self._load, run_id, after))

    async def pending(self, worker_id: str, now: datetime) -> Pending:
        return await self._threads.submit(partial(_read_pending, worker_id, to_micros(now)))

    async def list_page(self, filter: RunFilter, limit: int, cursor: str | None, *, oldest_first: bool) -> RunPage:
        start = OLDEST if oldest_first else NEWEST
        if cursor is not None:
            start = parse_cursor(cursor)
        direction: Direction = "ASC" if oldest_first else "DESC"
        work = partial(read_page, filter, start, direction, max(limit, 0), self._liveness)
        records, position = await self._threads.submit(work)
        return RunPage(records=tuple(records), cursor=None if position is None else position.to_cursor())

    async def list_limits(self) -> tuple[LimitUsage, ...]:
        return await self._threads.submit(partial(list_usage, self._liveness))

    async def read_draft(self, run_id: str) -> bytes | None:
        return await self._threads.submit(partial(read_draft, run_id))

    async def list_workers(self) -> list[WorkerHeartbeat]:
        return await self._threads.submit(self._liveness.list_heartbeats)

    async def read_fleet(self, now: datetime) -> Fleet:
        return await self._threads.submit(partial(self._read_fleet, to_micros(now)))

    async def check_health(self) -> StoreHealth:
        return await self._threads.submit(partial(_check_health, self._database))

    def abandon(self) -> None:
        """Stop the threads of an event loop that was closed."""
        self._threads.abandon()

    async def close(self) -> None:
        """Finish the reads in progress, then stop the threads."""
        await self._threads.stop()

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _read_fleet(self, now: int, execute: Execute) -> Fleet:
        workers = self._liveness.list_heartbeats(execute)
        return Fleet(workers=workers, counts=merge_rows(read_counts(now, self._liveness, execute)))

    def _load(self, run_id: str, after: int, execute: Execute) -> StoredRun:
        try:
            row = execute(statement("load_record"), (run_id,)).get
            if row is None:
                raise RunNotFound(run_id)
            first_seq, last_segment, unread, *columns = row
            is_running = columns[5] == RunStatus.RUNNING
            record = make_record(columns, is_running and self._liveness.is_alive(columns[8], execute))
        except (ValueError, OverflowError, TypeError) as exc:
            raise RunDamaged(run_id, f"its record is not what was written ({exc})") from exc
        seqs = range(max(first_seq, after + 1), record.next_seq)
        try:
            entries = _read_journal(execute, columns[0], run_id, last_segment, seqs) if seqs else ()
        except (apsw.CorruptError, UnicodeDecodeError, TypeError) as exc:  # TypeError: a number is damaged
            raise RunDamaged(run_id, f"its part of the file cannot be read ({exc})") from exc
        mail = read_unread_mail(columns[0], execute) if unread and after < RECORD_ONLY else ()
        return StoredRun(record=record, entries=entries, mail=mail)


def _read_journal(execute: Execute, run_key: int, run_id: str, last_segment: int, seqs: range) -> tuple[Entry, ...]:
    """Read the entries numbered `seqs`, from the last segment backwards.

    Raises:
        RunDamaged: an entry is missing, or is not what was written.
    """
    segments: list[tuple[Any, ...]] = []
    key, read_segment = last_segment, statement("read_segment")
    # A recursive statement for all segments would take twice as long.
    while (row := execute(read_segment, (key, run_key)).get) is not None:
        previous, *segment = row
        segments.append(tuple(segment))
        # Keys must fall, so that a damaged chain cannot loop.
        if segment[0] <= seqs.start or not 0 < previous < key:
            break
        key = previous
    try:
        segments.sort(key=_GET_SEQ)
        first = bisect_right(segments, seqs.start, key=_GET_SEQ) - 1
        entries = unpack_segments(segments[max(first, 0) :])
    except (ValueError, LookupError) as exc:
        raise RunDamaged(run_id, str(exc)) from exc
    if first < 0:
        raise RunDamaged(run_id, f"entry {seqs.start} is missing")
    if entries[-1].seq != seqs.stop - 1:
        raise RunDamaged(run_id, f"its last entry is {entries[-1].seq}, not {seqs.stop - 1}")
    return tuple(entries[seqs.start - entries[0].seq :])


def _read_pending(worker_id: str, now: int, execute: Execute) -> Pending:
    def find(name: str, *values: object) -> tuple[str, ...]:
        return tuple(run_id for (run_id,) in execute(statement(name), values).fetchall())

    return Pending(
        mail=find("pending_mail", worker_id),
        cancels=find("pending_cancels", worker_id),
        drafts=find("pending_drafts", worker_id, now),
    )


def _check_health(database: Database, execute: Execute) -> StoreHealth:
    """Check the whole file."""
    version, page_size, free_pages = (
        execute(f"PRAGMA {name}").get for name in ("user_version", "page_size", "freelist_count")
    )
    return StoreHealth(
        version=version,
        known_version=len(load_migrations()),
        size=sum(file.stat().st_size for file in database.list_files()),
        free=page_size * free_pages,
        problems=_find_problems(execute),
        warnings=database.describe_permissions(),
    )


def _find_problems(execute: Execute) -> list[str]:
    try:
        rows = execute(f"PRAGMA quick_check({_MAX_PROBLEMS})").fetchall()
    except apsw.CorruptError as exc:
        return [f"the file cannot be read: {exc}"]
    return [line for (problem,) in rows if problem != "ok" for line in str(problem).splitlines()]
