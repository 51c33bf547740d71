"""One writer for all runs: whatever waits is committed as one transaction."""

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
from holdfast.checkpoint.stores.sqlite.appends import append_together
from holdfast.checkpoint.stores.sqlite.database import Database
from holdfast.checkpoint.stores.sqlite.failures import as_store_error, store_errors
from holdfast.checkpoint.stores.sqlite.jobs import Job, left_alone
from holdfast.checkpoint.stores.sqlite.runs import append
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.together import MOST
from holdfast.checkpoint.stores.sqlite.transaction import Known, Transaction, to_micros
from holdfast.checkpoint.stores.sqlite.upkeep import Upkeep
from holdfast.clock import Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = logging.getLogger(__name__)

_BEGIN = statement("begin")

#: So many runs go on at a time: the event loop is busy with them while others are written.
_MANY = 64
#: How long the event loop lets go of the interpreter, so that what so many have written is begun to be committed.
_PASS_ON = 0.0001

#: A run whose last write was so short a time ago is one whose pace the hand-over to the thread would set.
_IN_PACE = 0.010
#: And if that write took no longer than this, the event loop can bear to do the next one itself.
_QUICK = 0.001
#: But after so long it has to look after others, too.
_TURN = 0.001


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

    def __init__(self, database: Database, clock: Clock, on_signal: Callable[[int], None]) -> None:
        self._database = database
        self._clock = clock
        self._on_signal = on_signal
        self._gathered: list[Job] = []
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()
        #: Held while the connection is used.
        self._busy = threading.Lock()
        #: Whether the thread that commits may wait for another process's lock.
        self._may_wait = False
        #: Whether the thread waits for jobs, however long that takes.
        self._sleeps = False
        self._known = Known()
        self._last_run: str | None = None
        self._last_end = self._last_took = 0.0
        #: How long the event loop's thread has committed in this turn of the loop.
        self._took_here = 0.0
        #: What was handed over, and is not taken yet; and whether that was the last of it.
        self._received: list[Job] = []
        self._stopping = False
        #: What was taken, and is not committed yet.
        self._taken: list[Job] = []
        #: What ended the thread, if it was not asked to end.
        self._broken: BaseException | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[int]:
        """Start the thread. Once the database is ready for jobs the future gives its newest signal."""
        self._loop = loop
        self._open = True
        started: asyncio.Future[int] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="holdfast-sqlite-writer", daemon=True)
        self._thread.start()
        return started

    def do(self, run_id: str | None, work: Callable[[*Ts, Transaction], T], *arguments: *Ts) -> asyncio.Future[T]:
        """Have `work` done with the arguments, in a transaction. What it returned is given once that is committed.

        `work` gets the transaction as its last argument. It raises a `CheckpointError` to refuse, and has changed
        nothing then.
        """
        if not self._open:
            raise self._refusal()
        done: asyncio.Future[T] = self._loop.create_future()
        job = Job(run_id, work, arguments, done)
        if not self._gathered:
            # A run that needs no turn of the loop gets none, but it leaves enough of them to others.
            if run_id == self._last_run and self._took_here < _TURN and self._commit_here([job]):
                return done
            self._loop.call_soon(self._hand_over)
        self._gathered.append(job)
        return done

    def writes(self) -> bool:
        """Whether the thread goes on. From any thread."""
        return self._broken is None

    async def stop(self) -> None:
        """Commit what was asked for, tidy up, close the connection, end the thread."""
        self._open = False
        self._hand_over()
        self._queue.put(None)
        await self._ended
        self._thread.join()

    # -- in the event loop's thread -----------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        self._took_here = 0.0
        jobs, self._gathered = self._gathered, []
        if not jobs or (len(jobs) == 1 and self._commit_here(jobs)):
            return
        self._queue.put(jobs)
        if len(jobs) >= _MANY // 2:
            # The thread would get the interpreter when all other runs have made their steps, or after 5 ms.
            time.sleep(_PASS_ON)

    def _commit_here(self, jobs: list[Job]) -> bool:
        """Commit the only job without the thread, if that is quick. False: the thread has to do it."""
        in_pace = self._last_took < _QUICK and time.perf_counter() - self._last_end < _IN_PACE
        if not in_pace or jobs[0].run_id is None or jobs[0].run_id != self._last_run:
            return False
        if not self._queue.empty() or not self._busy.acquire(blocking=False):
            return False
        try:
            self._commit(jobs)
        except apsw.Error:
            return False  # most likely another process writes: the thread can wait for it
        else:
            to_do = self._sleeps and self._upkeep.pause() is not None
        finally:
            self._busy.release()
        self._took_here += self._last_took
        jobs[0].tell()
        if to_do:
            self._queue.put([])
        return True

    def _let_go(self, jobs: list[Job]) -> None:
        """Let the callers go on: of many, some after others, so that not all of them write at once again."""
        for job in jobs[:_MANY]:
            job.tell()
        if len(jobs) > _MANY:
            # It comes before the first of these have handed over what they write, and the next go on after that.
            self._loop.call_soon(self._let_go, jobs[_MANY:])

    def _give_up(self) -> None:
        """The thread ends by itself: let nobody wait for it."""
        self._open = False
        jobs = [*self._taken, *self._take(), *self._gathered]
        self._gathered = []
        for job in jobs:
            job.error = self._refusal()
            job.tell()
        _succeed(self._ended, None)

    def _refusal(self) -> StoreError:
        if self._broken is None:
            return StoreClosed("this store is closed: nothing was written")
        error = StoreError(
            f"{self._database.path} is not written any more, its thread has ended: close the store and open it again"
            f" ({self._broken!r})"
        )
        error.__cause__ = self._broken
        return error

    # -- in the writer's thread ---------------------------------------------------------------------------------------

    def _run(self, started: asyncio.Future[int]) -> None:
        try:
            signal = self._connect()
        except Exception as exc:  # whatever it is, it belongs to whoever opens the store
            self._tell(_fail, started, exc)
            return
        self._tell(_succeed, started, signal)
        try:
            self._serve()
            self._finish()
        except BaseException as exc:  # whatever it is, nobody may be left waiting
            self._broken = exc
            _log.critical("nothing is written to %s any more", self._database.path, exc_info=True)
            try:
                with self._busy:
                    self._connection.close()
            finally:
                self._tell(self._give_up)

    def _serve(self) -> None:
        """Commit what is handed over, until the last of it."""
        while self._taken or not self._stopping:
            if not self._taken:
                self._wait()
                self._taken = self._take()
            with self._busy:
                done = self._taken
                if done:
                    self._commit_waiting(done)
                # Taken first: once these runs go on, the event loop has the interpreter, and hands over more.
                self._taken = self._take()
                if done:
                    self._tell(self._let_go, done)
                # Half as long again as the commit took, so that upkeep keeps up with the writes.
                self._upkeep.step(self._last_took / 2 if done else 0, quiet=not done)

    def _finish(self) -> None:
        try:
            with self._busy, store_errors(self._database.path, self._connection):
                self._upkeep.finish()
                self._connection.close()
        except StoreError as exc:
            self._tell(_fail, self._ended, exc)
        else:
            self._tell(_succeed, self._ended, None)

    def _connect(self) -> int:
        """Make the database ready. Gives its newest signal."""
        self._database.prepare()
        self._may_wait = True  # whoever is the last to close the file, or the first to read its log, locks it
        self._connection = self._database.writer(may_wait=lambda: self._may_wait)
        try:
            self._cursor = self._connection.cursor()
            self._upkeep = Upkeep(self._connection, self._database)
            with store_errors(self._database.path, self._connection):
                return self._transaction().newest_signal()
        except BaseException:
            self._connection.close()
            raise
        finally:
            self._may_wait = False

    def _wait(self) -> None:
        """Until there are jobs to take, or upkeep to do."""
        with self._busy:
            pause = self._upkeep.pause()
            # What the other thread leaves to be done from now on, it tells.
            self._sleeps = pause is None
        with contextlib.suppress(Empty):
            self._receive(self._queue.get(timeout=pause))

    def _take(self) -> list[Job]:
        """Everything that waits."""
        with contextlib.suppress(Empty):
            while True:
                self._receive(self._queue.get_nowait())
        jobs, self._received = self._received, []
        return jobs

    def _receive(self, handed: list[Job] | None) -> None:
        if handed is None:
            self._stopping = True
        else:
            self._received += handed

    def _commit_waiting(self, jobs: list[Job]) -> None:
        self._may_wait = True
        try:
            self._commit(jobs)
        except Exception as exc:  # whatever it is, nobody may be left waiting
            for job in jobs:
                job.error = self._as_store_error(exc) if isinstance(exc, apsw.Error) else exc
        finally:
            self._may_wait = False

    # -- in either, holding `_busy` -----------------------------------------------------------------------------------

    def _commit(self, jobs: list[Job]) -> None:
        """Do the jobs in one transaction; if one of them spoils it, each in its own.

        Raises:
            apsw.Error: the transaction could not be begun. No job was done.
        """
        began = time.perf_counter()
        if not self._commit_appends(jobs):
            self._connection.execute(_BEGIN)
            if not self._commit_begun(jobs) and len(jobs) > 1:
                self._commit_apart(jobs)
        self._upkeep.committed()
        self._last_run = jobs[0].run_id if all(job.run_id == jobs[0].run_id for job in jobs) else None
        self._last_end = time.perf_counter()
        self._last_took = self._last_end - began

    def _commit_appends(self, jobs: list[Job]) -> bool:
        """Whether they were nothing but simple appends, and are committed. If not, nothing has happened."""
        appends = [job.arguments for job in jobs if job.work is append]
        if len(appends) < len(jobs) or len(jobs) > MOST:
            return False
        try:
            return append_together(appends, self._cursor, self._known, to_micros(self._clock.now()))
        except apsw.BusyError:
            raise
        except Exception:  # whose fault it is, and what it is called, is found out in the ordinary way
            return False

    def _commit_apart(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.error = None
            try:
                self._connection.execute(_BEGIN)
            except apsw.Error as exc:
                job.error = self._as_store_error(exc)
            else:
                self._commit_begun([job])

    def _commit_begun(self, jobs: list[Job]) -> bool:
        """Whether the transaction came about. If not, it was rolled back, and the last job has the error."""
        transaction = self._transaction()
        job = jobs[0]
        try:
            for job in left_alone(jobs, transaction):
                try:
                    job.result = job.work(*job.arguments, transaction)
                except CheckpointError as refusal:
                    job.error = refusal
            signal = transaction.finish()
            self._connection.execute("COMMIT")
        except BaseException as exc:  # whatever it is, it must not leave the transaction open
            # A full disk makes SQLite roll back by itself.
            error = self._as_store_error(exc) if isinstance(exc, apsw.Error) else exc
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if not isinstance(error, Exception):
                raise
            job.error = error
            return False
        if transaction.littered:
            self._upkeep.littered(transaction.littered)
        if signal is not None:
            self._on_signal(signal)
        return True

    def _transaction(self) -> Transaction:
        return Transaction(self._connection, self._cursor, self._clock.now(), self._known)

    def _as_store_error(self, exc: apsw.Error) -> StoreError:
        error = as_store_error(exc, self._database.path, self._connection)
        error.__cause__ = exc
        return error

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], exc: Exception) -> None:
    if not future.done():
        future.set_exception(exc)
