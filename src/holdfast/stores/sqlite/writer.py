"""The writer: one thread that commits the waiting writes of all runs as one transaction."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

import apsw

from holdfast.checkpoint.errors import CheckpointError, StoreClosed, StoreError
from holdfast.clock import Clock
from holdfast.concurrency import THREADS
from holdfast.db.sqlite_file import FILE_CHECK_INTERVAL_S, roll_back
from holdfast.stores.sqlite.database import Database
from holdfast.stores.sqlite.runs import MAX_BULK_APPENDS, UserTransaction, append, append_bulk, apply_appends
from holdfast.stores.sqlite.transaction import RolledBack, Transaction, WriteRequest, answer_call, resolve_future
from holdfast.stores.sqlite.vacuum import Vacuum

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger(__name__)

#: Callers that resume at a time. The event loop runs their steps while the thread commits the next batch. With the GIL
#: yield and untracked messages it raises W2 by 14% at 128 runs and by 29% at 1,000.
_RESOLVE_BATCH = 64
#: How long the event loop yields the GIL after a large batch, so that the thread starts to commit it.
_GIL_YIELD_S = 0.0001

#: A write is committed inline if the last write of its run ended at most this long ago, ...
_INLINE_MAX_GAP_S = 0.010
#: ... that commit took at most this long, ...
_INLINE_MAX_COMMIT_S = 0.001
#: ... and inline commits took at most this long in this turn of the event loop.
_INLINE_BUDGET_S = 0.001

#: The first write after such a pause checks the files, however recent the last check is.
_PAUSE_S = 0.020

#: How often a transaction that waits for the event loop looks whether that has ended.
_LOOP_CHECK_S = 1.0


class Writer:
    """Commits writes in groups, on its own thread.

    The writes of one turn of the event loop are queued together. The thread takes all that was queued while it was
    busy, so that all these runs share one commit and one fsync. A write that is refused or fails does not affect the
    others.

    The event loop's thread commits a write itself (inline) if it is the only one, and the last write of the same run
    ended just before and was fast. Two thread switches per commit would cost a lone run a quarter of its steps per
    second (W1: 1,504 with inline commits, 1,119 without). A run that waits for a model, or for a slow disk, is never
    committed inline.

    If the thread ends by an error, all waiting and later writes fail with a `StoreError`.
    """

    def __init__(self, database: Database, clock: Clock, on_change: Callable[[int], None]) -> None:
        self._database = database
        self._clock = clock
        self._on_change = on_change
        self._threads = THREADS.get()
        #: Writes of this turn of the event loop.
        self._batch: list[WriteRequest] = []
        #: `None` stops the thread.
        self._queue: SimpleQueue[list[WriteRequest] | None] = self._threads.make_queue()
        #: Held while the connection is used.
        self._connection_lock = self._threads.make_lock()
        #: Whether the committing thread may wait for another process's lock.
        self._may_wait = False
        #: Whether the thread waits for writes without a timeout.
        self._is_idle = False
        self._last_run_id: str | None = None
        self._last_commit_at = self._last_commit_s = 0.0
        self._files_checked_at = 0.0
        #: Time spent on inline commits in this turn of the event loop.
        self._inline_s = 0.0
        #: Taken from the queue, not yet in `_in_flight`.
        self._received: list[WriteRequest] = []
        self._stopping = False
        #: Being committed.
        self._in_flight: list[WriteRequest] = []
        #: The error that ended the thread.
        self._failure: BaseException | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Start the thread. The future returns the change number once the database is ready."""
        self._loop = loop
        self._open = True
        started: asyncio.Future[int] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._thread = self._threads.start(partial(self._run, started), name="holdfast-sqlite-writer")
        return started

    def submit(self, run_id: str | None, work: Callable[[*Ts, Transaction], T], *arguments: *Ts) -> asyncio.Future[T]:
        """Call `work(*arguments, transaction)` in a transaction. The future returns its result once that is committed.

        To refuse, `work` raises a `CheckpointError` before it changes anything.
        """
        if not self._open:
            raise self._make_closed_error()
        future: asyncio.Future[T] = self._loop.create_future()
        request = WriteRequest(run_id, work, arguments, future)
        if not self._batch:
            if run_id == self._last_run_id and self._inline_s < _INLINE_BUDGET_S and self._commit_inline(request):
                return future
            self._loop.call_soon(self._flush_batch)
        self._batch.append(request)
        return future

    async def transact(self, user: UserTransaction) -> Any:
        """Call a function of the user and commit its writes with an append, alone. Return what it returned.

        A caller that is cancelled before the function has returned does not wait, and nothing is committed.
        """
        future = self.submit(None, user.run, self._call_in_loop)
        self._batch[-1].is_alone = True  # without a run it is queued, and never committed inline
        while True:
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if not user.is_committing:
                    user.is_abandoned = True
                    raise
            except RolledBack as exc:
                raise exc.error from None

    def is_running(self) -> bool:
        """Return whether the thread can still write for an event loop. From any thread."""
        return self._failure is None and not self._loop.is_closed()

    def abandon(self) -> None:
        """End the thread of an event loop that was closed."""
        self._open = False
        self._queue.put(None)

    async def stop(self) -> None:
        """Commit what was submitted, vacuum, close the connection, end the thread."""
        self._open = False
        self._flush_batch()
        self._queue.put(None)
        await self._stopped
        self._thread.join()

    # -- in the event loop's thread -----------------------------------------------------------------------------------

    def _flush_batch(self) -> None:
        self._inline_s = 0.0
        requests, self._batch = self._batch, []
        if not requests or (len(requests) == 1 and self._commit_inline(requests[0])):
            return
        self._queue.put(requests)
        if len(requests) >= _RESOLVE_BATCH // 2:
            # Otherwise the thread gets the GIL after 5 ms, or when all other runs have made their steps.
            self._threads.sleep(_GIL_YIELD_S)

    def _commit_inline(self, request: WriteRequest) -> bool:
        """Commit the only request without the thread, if that is fast. Return False if the thread has to commit it."""
        is_fast = (
            self._last_commit_s < _INLINE_MAX_COMMIT_S
            and self._threads.monotonic() - self._last_commit_at < _INLINE_MAX_GAP_S
        )
        if not is_fast or request.run_id is None or request.run_id != self._last_run_id:
            return False
        if not self._queue.empty() or not self._connection_lock.acquire(blocking=False):
            return False
        try:
            self._commit([request])
            needs_vacuum = self._is_idle and self._vacuum.idle_timeout() is not None
        except (apsw.Error, StoreError):
            return False  # most likely another process has the lock: the thread can wait for it
        finally:
            self._connection_lock.release()
        self._inline_s += self._last_commit_s
        request.resolve()
        if needs_vacuum:
            self._queue.put([])
        return True

    def _resolve(self, requests: list[WriteRequest]) -> None:
        """Resume the callers in batches, so that not all of them write in the same turn of the event loop."""
        for request in requests[:_RESOLVE_BATCH]:
            request.resolve()
        if len(requests) > _RESOLVE_BATCH:
            self._loop.call_soon(self._resolve, requests[_RESOLVE_BATCH:])

    def _fail_all(self) -> None:
        """Fail all waiting writes: the thread has ended by an error."""
        self._open = False
        requests, self._batch = [*self._in_flight, *self._batch], []
        while queued := self._drain_queue():
            requests += queued
        for request in requests:
            request.error = self._make_closed_error()
            request.resolve()
        resolve_future(self._stopped, None, None)

    def _make_closed_error(self) -> StoreError:
        if self._failure is None:
            return StoreClosed("this store is closed: nothing was written")
        error = StoreError(
            f"{self._database.path} can no longer be written, the writer thread has ended: close the store and open"
            f" it again ({self._failure!r})"
        )
        error.__cause__ = self._failure
        return error

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _run(self, started: asyncio.Future[int]) -> None:
        try:
            change_number = self._connect()
        except Exception as exc:  # any error belongs to the caller of `start`
            self._post_to_loop(resolve_future, started, None, exc)
            return
        self._post_to_loop(resolve_future, started, change_number, None)
        try:
            self._serve()
            self._close()
        except BaseException as exc:  # any error fails the waiting callers
            self._failure = exc
            _log.critical("the writer thread of %s has ended: nothing is written", self._database.path, exc_info=True)
            try:
                with self._connection_lock:
                    self._connection.close()
            finally:
                self._post_to_loop(self._fail_all)

    def _connect(self) -> int:
        """Prepare the database. Return its change number."""
        self._database.prepare()
        # The last process to close the file, and the first to read its WAL, hold a lock.
        self._may_wait = True
        self._connection = self._database.connect_writer(self._may_wait_for_lock)
        try:
            with self._database.mapped_errors(self._connection):
                self._vacuum = Vacuum(self._connection, self._database, self._threads)
                change_number = Transaction(self._connection, self._clock.now()).read_change_number()
                self._database.watch_files()
                return change_number
        except BaseException:
            self._connection.close()
            raise
        finally:
            self._may_wait = False

    def _may_wait_for_lock(self) -> bool:
        return self._may_wait

    def _serve(self) -> None:
        """Commit what is queued, until `stop`."""
        while self._in_flight or not self._stopping:
            if not self._in_flight:
                self._wait_for_work()
                self._in_flight = self._drain_queue()
            with self._connection_lock:
                committed = self._in_flight
                if committed:
                    self._commit_blocking(committed)
                # Drained before the callers resume: then the event loop holds the GIL and queues more.
                self._in_flight = self._drain_queue()
                if committed:
                    self._post_to_loop(self._resolve, committed)
                # Half the time of the commit, so that the vacuum keeps up with the writes.
                self._vacuum.run_slice(self._last_commit_s / 2 if committed else 0, idle=not committed)

    def _close(self) -> None:
        try:
            with self._connection_lock, self._database.mapped_errors(self._connection):
                self._vacuum.finish()
                self._connection.close()
        except StoreError as exc:
            self._post_to_loop(resolve_future, self._stopped, None, exc)
        else:
            self._post_to_loop(resolve_future, self._stopped, None, None)

    def _wait_for_work(self) -> None:
        """Wait for writes, or until the vacuum is due."""
        with self._connection_lock:
            timeout = self._vacuum.idle_timeout()
            # From here on an inline commit that leaves work for the vacuum wakes this thread.
            self._is_idle = timeout is None
        with contextlib.suppress(Empty):
            self._receive(self._queue.get(timeout=timeout))

    def _drain_queue(self) -> list[WriteRequest]:
        """Return the requests to commit next: all that are queued, up to the first that is committed alone."""
        with contextlib.suppress(Empty):
            while True:
                self._receive(self._queue.get_nowait())
        received = self._received
        count = next((place for place, each in enumerate(received) if each.is_alone), len(received))
        count = count or min(1, len(received))
        self._received = received[count:]
        return received[:count]

    def _receive(self, requests: list[WriteRequest] | None) -> None:
        if requests is None:
            self._stopping = True
        else:
            self._received += requests

    def _call_in_loop(self, function: Callable[[], T]) -> T:
        """Call a function in the event loop's thread, for a transaction that waits for it."""
        answers = self._threads.make_queue()
        self._post_to_loop(answer_call, function, answers)
        while not self._loop.is_closed():
            with contextlib.suppress(Empty):
                value, error = answers.get(timeout=_LOOP_CHECK_S)
                if error is not None:
                    raise error
                return value  # type: ignore[no-any-return]  # the queue holds any values
        raise StoreClosed("the event loop has ended: nothing was written")

    def _commit_blocking(self, requests: list[WriteRequest]) -> None:
        self._may_wait = True
        try:
            self._commit(requests)
        except Exception as exc:  # any error fails the waiting callers
            for request in requests:
                request.error = self._map_error(exc)
        finally:
            self._may_wait = False

    def _post_to_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        # RuntimeError: the loop is closed, so no task waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    # -- in either thread, holding `_connection_lock` -----------------------------------------------------------------

    def _commit(self, requests: list[WriteRequest]) -> None:
        """Commit all requests in one transaction; if one of them makes it fail, each in its own.

        Raises:
            apsw.Error: the transaction could not be started. Nothing was written.
            StoreReplaced: the file was deleted or replaced. Nothing was written.
        """
        began = self._threads.monotonic()
        is_first = began - self._last_commit_at >= _PAUSE_S
        if is_first or began - self._files_checked_at >= FILE_CHECK_INTERVAL_S:
            self._database.check_files()
            self._files_checked_at = began
        if not self._commit_appends(requests):
            self._connection.execute("BEGIN IMMEDIATE")
            if not self._commit_transaction(requests) and len(requests) > 1:
                self._commit_separately(requests)
        self._vacuum.on_commit()
        self._last_run_id = requests[-1].run_id
        self._last_commit_at = self._threads.monotonic()
        # The time of the user's function says nothing about the disk.
        self._last_commit_s = 0.0 if requests[0].is_alone else self._last_commit_at - began

    def _commit_appends(self, requests: list[WriteRequest]) -> bool:
        """Commit the requests as a single statement if all are appends. Return False if nothing was written.

        Without BEGIN and COMMIT a save of a lone run takes 130,000 instructions instead of 168,000: a tenth of a step.
        """
        if len(requests) > MAX_BULK_APPENDS or any(request.work is not append for request in requests):
            return False
        transaction = Transaction(self._connection, self._clock.now())
        try:
            return append_bulk([request.arguments for request in requests], transaction)
        except apsw.BusyError:
            raise
        except Exception:  # `_commit_transaction` raises it again, and maps it
            return False

    def _commit_separately(self, requests: list[WriteRequest]) -> None:
        for request in requests:
            request.error = None
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except apsw.Error as exc:
                request.error = self._map_error(exc)
            else:
                self._commit_transaction([request])

    def _commit_transaction(self, requests: list[WriteRequest]) -> bool:
        """Run the requests and commit. Return False if it was rolled back; the request that failed has the error."""
        transaction = Transaction(self._connection, self._clock.now())
        request = requests[0]
        try:
            for request in apply_appends(requests, transaction):
                try:
                    request.result = request.work(*request.arguments, transaction)
                except CheckpointError as refusal:
                    request.error = refusal
            change_number = transaction.flush_counters()
            self._connection.execute("COMMIT")
        except BaseException as exc:  # no error may leave the transaction open
            error = self._map_error(exc)  # reads the errno of the connection, so before the rollback
            roll_back(self._connection)
            if not isinstance(error, Exception):
                raise
            request.error = error
            return False
        if transaction.garbage_journals:
            self._vacuum.garbage_added(transaction.garbage_journals)
        if change_number is not None:
            self._on_change(change_number)
        return True

    def _map_error(self, exc: BaseException) -> Any:
        """Return the `StoreError` for an error of SQLite, any other error unchanged."""
        if not isinstance(exc, apsw.Error):
            return exc
        error = self._database.map_error(exc, self._connection)
        error.__cause__ = exc
        return error
