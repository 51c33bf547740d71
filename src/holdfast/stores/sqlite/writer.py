"""What callers ask of the writer.

One writer for all runs: whatever waits is committed as one transaction.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

import apsw

from holdfast.checkpoint.errors import CheckpointError, StoreClosed, StoreError
from holdfast.clock import Clock
from holdfast.stores.sqlite.bulk import MAX_ROWS, append_bulk, remove_bulk
from holdfast.stores.sqlite.database import Database, map_error, statement, store_errors
from holdfast.stores.sqlite.runs import append, remove
from holdfast.stores.sqlite.transaction import Transaction, WriteCache, to_micros
from holdfast.stores.sqlite.vacuum import Vacuum


class WriteRequest:
    """One caller's write, and what became of it."""

    __slots__ = ("arguments", "error", "future", "result", "run_id", "work")

    def __init__(
        self, run_id: str | None, work: Callable[..., Any], arguments: tuple[Any, ...], future: asyncio.Future[Any]
    ) -> None:
        self.run_id = run_id
        self.work = work
        self.arguments = arguments
        self.future = future
        self.result: Any = None
        self.error: Exception | None = None

    def resolve(self) -> None:
        """Let the caller go on. Only in the event loop's thread."""
        if self.future.done():
            return  # cancelled meanwhile
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


def apply_bulk(requests: list[WriteRequest], transaction: Transaction) -> list[WriteRequest]:
    """The jobs that are left when those of one kind were done together, as far as that is possible."""
    appends = [job for job in requests if job.work is append]
    removals = [job for job in requests if job.work is remove and job.arguments[1] is not None]
    left = [job for job in requests if job.work is not append and (job.work is not remove or job.arguments[1] is None)]
    if appends:
        transaction.load_last_key()
    for some in _split_batches(appends):
        arguments = [job.arguments for job in some]
        if not append_bulk(arguments, transaction.cursor, transaction.cache, transaction.now_micros):
            left += some
    for some in _split_batches(removals):
        if not remove_bulk([job.arguments[:2] for job in some], transaction):
            left += some
    return left


def _split_batches(requests: list[WriteRequest]) -> list[list[WriteRequest]]:
    return [requests[start : start + MAX_ROWS] for start in range(0, len(requests), MAX_ROWS)]


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger(__name__)

_BEGIN = statement("begin")

#: So many runs go on at a time: the event loop is busy with them while others are written.
_RESOLVE_BATCH = 64
#: How long the event loop lets go of the interpreter, so that what so many have written is begun to be committed.
_GIL_YIELD_S = 0.0001

#: A run whose last write was so short a time ago is one whose pace the hand-over to the thread would set.
_INLINE_MAX_GAP_S = 0.010
#: And if that write took no longer than this, the event loop can bear to do the next one itself.
_INLINE_MAX_COMMIT_S = 0.001
#: But after so long it has to look after others, too.
_INLINE_BUDGET_S = 0.001


class Writer:
    """Commits jobs in groups, from a thread of its own.

    The jobs of one turn of the event loop are handed over together, and the thread takes whatever was handed over
    while it was busy: so many runs share one commit and one sync. A job that is refused, or that fails, fails alone.

    The hand-over to another thread and back costs a lone run in a hurry a third of its speed. So the event loop's
    thread commits a job itself, if it is the only one, the run's last write is just behind it, and that one was
    quick. A run that waits for a model or for a slow disk is never written by the event loop's thread.

    Runs whose writes are committed together go on together, and write together again, while this thread and the event
    loop wait for one another. So many runs are put out of step: some go on while others are written.

    Should the thread ever end by itself, whoever waits for it gets a `StoreError`, and so does every later job.
    """

    def __init__(self, database: Database, clock: Clock, on_change: Callable[[int], None]) -> None:
        self._database = database
        self._clock = clock
        self._on_change = on_change
        self._batch: list[WriteRequest] = []
        self._queue: SimpleQueue[list[WriteRequest] | None] = SimpleQueue()
        #: Held while the connection is used.
        self._connection_lock = threading.Lock()
        #: Whether the thread that commits may wait for another process's lock.
        self._may_wait = False
        #: Whether the thread waits for jobs, however long that takes.
        self._is_idle = False
        self._cache = WriteCache()
        self._last_run_id: str | None = None
        self._last_commit_at = self._last_commit_s = 0.0
        #: How long the event loop's thread has committed in this turn of the loop.
        self._inline_s = 0.0
        #: What was handed over, and is not taken yet; and whether that was the last of it.
        self._received: list[WriteRequest] = []
        self._stopping = False
        #: What was taken, and is not committed yet.
        self._in_flight: list[WriteRequest] = []
        #: What ended the thread, if it was not asked to end.
        self._failure: BaseException | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Start the thread. Once the database is ready for jobs the future gives its newest signal."""
        self._loop = loop
        self._open = True
        started: asyncio.Future[int] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="holdfast-sqlite-writer", daemon=True)
        self._thread.start()
        return started

    def submit(self, run_id: str | None, work: Callable[[*Ts, Transaction], T], *arguments: *Ts) -> asyncio.Future[T]:
        """Have `work` done with the arguments, in a transaction. What it returned is given once that is committed.

        `work` gets the transaction as its last argument. It raises a `CheckpointError` to refuse, and has changed
        nothing then.
        """
        if not self._open:
            raise self._make_closed_error()
        done: asyncio.Future[T] = self._loop.create_future()
        job = WriteRequest(run_id, work, arguments, done)
        if not self._batch:
            # A run that needs no turn of the loop gets none, but it leaves enough of them to others.
            if run_id == self._last_run_id and self._inline_s < _INLINE_BUDGET_S and self._commit_inline([job]):
                return done
            self._loop.call_soon(self._flush_batch)
        self._batch.append(job)
        return done

    def is_running(self) -> bool:
        """Whether the thread goes on. From any thread."""
        return self._failure is None

    async def stop(self) -> None:
        """Commit what was asked for, tidy up, close the connection, end the thread."""
        self._open = False
        self._flush_batch()
        self._queue.put(None)
        await self._stopped
        self._thread.join()

    # -- in the event loop's thread -----------------------------------------------------------------------------------

    def _flush_batch(self) -> None:
        self._inline_s = 0.0
        jobs, self._batch = self._batch, []
        if not jobs or (len(jobs) == 1 and self._commit_inline(jobs)):
            return
        self._queue.put(jobs)
        if len(jobs) >= _RESOLVE_BATCH // 2:
            # The thread would get the interpreter when all other runs have made their steps, or after 5 ms.
            time.sleep(_GIL_YIELD_S)

    def _commit_inline(self, requests: list[WriteRequest]) -> bool:
        """Commit the only job without the thread, if that is quick. False: the thread has to do it."""
        in_pace = (
            self._last_commit_s < _INLINE_MAX_COMMIT_S
            and time.perf_counter() - self._last_commit_at < _INLINE_MAX_GAP_S
        )
        if not in_pace or requests[0].run_id is None or requests[0].run_id != self._last_run_id:
            return False
        if not self._queue.empty() or not self._connection_lock.acquire(blocking=False):
            return False
        try:
            self._commit(requests)
        except apsw.Error:
            return False  # most likely another process writes: the thread can wait for it
        else:
            to_do = self._is_idle and self._vacuum.idle_timeout() is not None
        finally:
            self._connection_lock.release()
        self._inline_s += self._last_commit_s
        requests[0].resolve()
        if to_do:
            self._queue.put([])
        return True

    def _resolve(self, requests: list[WriteRequest]) -> None:
        """Let the callers go on: of many, some after others, so that not all of them write at once again."""
        for job in requests[:_RESOLVE_BATCH]:
            job.resolve()
        if len(requests) > _RESOLVE_BATCH:
            # It comes before the first of these have handed over what they write, and the next go on after that.
            self._loop.call_soon(self._resolve, requests[_RESOLVE_BATCH:])

    def _fail_all(self) -> None:
        """The thread ends by itself: let nobody wait for it."""
        self._open = False
        jobs = [*self._in_flight, *self._drain_queue(), *self._batch]
        self._batch = []
        for job in jobs:
            job.error = self._make_closed_error()
            job.resolve()
        _succeed(self._stopped, None)

    def _make_closed_error(self) -> StoreError:
        if self._failure is None:
            return StoreClosed("this store is closed: nothing was written")
        error = StoreError(
            f"{self._database.path} is not written any more, its thread has ended: close the store and open it again"
            f" ({self._failure!r})"
        )
        error.__cause__ = self._failure
        return error

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _run(self, started: asyncio.Future[int]) -> None:
        try:
            signal = self._connect()
        except Exception as exc:  # whatever it is, it belongs to whoever opens the store
            self._post_to_loop(_fail, started, exc)
            return
        self._post_to_loop(_succeed, started, signal)
        try:
            self._serve()
            self._close()
        except BaseException as exc:  # whatever it is, nobody may be left waiting
            self._failure = exc
            _log.critical("nothing is written to %s any more", self._database.path, exc_info=True)
            try:
                with self._connection_lock:
                    self._connection.close()
            finally:
                self._post_to_loop(self._fail_all)

    def _serve(self) -> None:
        """Commit what is handed over, until the last of it."""
        while self._in_flight or not self._stopping:
            if not self._in_flight:
                self._wait_for_work()
                self._in_flight = self._drain_queue()
            with self._connection_lock:
                done = self._in_flight
                if done:
                    self._commit_blocking(done)
                # Taken first: once these runs go on, the event loop has the interpreter, and hands over more.
                self._in_flight = self._drain_queue()
                if done:
                    self._post_to_loop(self._resolve, done)
                # Half as long again as the commit took, so that upkeep keeps up with the writes.
                self._vacuum.run_slice(self._last_commit_s / 2 if done else 0, idle=not done)

    def _close(self) -> None:
        try:
            with self._connection_lock, store_errors(self._database.path, self._connection):
                self._vacuum.finish()
                self._connection.close()
        except StoreError as exc:
            self._post_to_loop(_fail, self._stopped, exc)
        else:
            self._post_to_loop(_succeed, self._stopped, None)

    def _connect(self) -> int:
        """Make the database ready. Gives its newest signal."""
        self._database.prepare()
        self._may_wait = True  # whoever is the last to close the file, or the first to read its log, locks it
        self._connection = self._database.connect_writer(may_wait=lambda: self._may_wait)
        try:
            self._cursor = self._connection.cursor()
            self._vacuum = Vacuum(self._connection, self._database)
            with store_errors(self._database.path, self._connection):
                return self._make_transaction().read_change_number()
        except BaseException:
            self._connection.close()
            raise
        finally:
            self._may_wait = False

    def _wait_for_work(self) -> None:
        """Until there are jobs to take, or upkeep to do."""
        with self._connection_lock:
            pause = self._vacuum.idle_timeout()
            # What the other thread leaves to be done from now on, it tells.
            self._is_idle = pause is None
        with contextlib.suppress(Empty):
            self._receive(self._queue.get(timeout=pause))

    def _drain_queue(self) -> list[WriteRequest]:
        """Everything that waits."""
        with contextlib.suppress(Empty):
            while True:
                self._receive(self._queue.get_nowait())
        jobs, self._received = self._received, []
        return jobs

    def _receive(self, requests: list[WriteRequest] | None) -> None:
        if requests is None:
            self._stopping = True
        else:
            self._received += requests

    def _commit_blocking(self, requests: list[WriteRequest]) -> None:
        self._may_wait = True
        try:
            self._commit(requests)
        except Exception as exc:  # whatever it is, nobody may be left waiting
            for job in requests:
                job.error = self._map_error(exc) if isinstance(exc, apsw.Error) else exc
        finally:
            self._may_wait = False

    # -- in either, holding `_busy` -----------------------------------------------------------------------------------

    def _commit(self, requests: list[WriteRequest]) -> None:
        """Do the jobs in one transaction; if one of them spoils it, each in its own.

        Raises:
            apsw.Error: the transaction could not be begun. No job was done.
        """
        began = time.perf_counter()
        if not self._commit_appends(requests):
            self._connection.execute(_BEGIN)
            if not self._commit_transaction(requests) and len(requests) > 1:
                self._commit_separately(requests)
        self._vacuum.on_commit()
        self._last_run_id = requests[0].run_id if all(job.run_id == requests[0].run_id for job in requests) else None
        self._last_commit_at = time.perf_counter()
        self._last_commit_s = self._last_commit_at - began

    def _commit_appends(self, requests: list[WriteRequest]) -> bool:
        """Whether they were nothing but simple appends, and are committed. If not, nothing has happened."""
        appends = [job.arguments for job in requests if job.work is append]
        if len(appends) < len(requests) or len(requests) > MAX_ROWS:
            return False
        try:
            return append_bulk(appends, self._cursor, self._cache, to_micros(self._clock.now()))
        except apsw.BusyError:
            raise
        except Exception:  # whose fault it is, and what it is called, is found out in the ordinary way
            return False

    def _commit_separately(self, requests: list[WriteRequest]) -> None:
        for job in requests:
            job.error = None
            try:
                self._connection.execute(_BEGIN)
            except apsw.Error as exc:
                job.error = self._map_error(exc)
            else:
                self._commit_transaction([job])

    def _commit_transaction(self, requests: list[WriteRequest]) -> bool:
        """Whether the transaction came about. If not, it was rolled back, and the last job has the error."""
        transaction = self._make_transaction()
        job = requests[0]
        try:
            for job in apply_bulk(requests, transaction):
                try:
                    job.result = job.work(*job.arguments, transaction)
                except CheckpointError as refusal:
                    job.error = refusal
            signal = transaction.flush_counters()
            self._connection.execute("COMMIT")
        except BaseException as exc:  # whatever it is, it must not leave the transaction open
            # A full disk makes SQLite roll back by itself.
            error = self._map_error(exc) if isinstance(exc, apsw.Error) else exc
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if not isinstance(error, Exception):
                raise
            job.error = error
            return False
        if transaction.garbage_journals:
            self._vacuum.garbage_added(transaction.garbage_journals)
        if signal is not None:
            self._on_change(signal)
        return True

    def _make_transaction(self) -> Transaction:
        return Transaction(self._connection, self._cursor, self._clock.now(), self._cache)

    def _map_error(self, exc: apsw.Error) -> StoreError:
        error = map_error(exc, self._database.path, self._connection)
        error.__cause__ = exc
        return error

    def _post_to_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], exc: Exception) -> None:
    if not future.done():
        future.set_exception(exc)
