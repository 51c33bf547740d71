"""Liveness of workers, and notification of changes between processes: one thread with one connection for both."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import apsw

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.workers import WorkerIdentity, encode_agents
from holdfast.clock import Clock
from holdfast.concurrency import THREADS, Thread
from holdfast.db.sqlite_file import set_synchronous, transaction
from holdfast.stores.sqlite.database import Database, statement
from holdfast.stores.sqlite.liveness import Liveness
from holdfast.stores.sqlite.transaction import Execute, Transaction, to_micros


def register_worker(worker: WorkerIdentity, liveness: Liveness, transaction: Transaction) -> None:
    _forget_workers(liveness, transaction.execute)
    process = worker.process
    row = (worker.worker_id, process.host, process.pid, process.started, transaction.now_micros)
    transaction.execute(statement("register_worker"), (*row, encode_agents(worker.agents)))


def deregister_worker(worker_id: str, transaction: Transaction) -> None:
    transaction.execute(statement("deregister_worker"), (worker_id,))
    transaction.notify = True


def _forget_workers(liveness: Liveness, execute: Execute) -> None:
    """Delete rows of dead workers, which would accumulate."""
    for worker_id in liveness.forgettable_workers(execute):
        execute(statement("deregister_worker"), (worker_id,))


class ChangeNotifier:
    """Wakes the waiting tasks when the change number grows, in this process or in another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._latest = self._seen = 0
        self._event = asyncio.Event()

    def start(self, number: int) -> None:
        """Start at this change number."""
        self._latest = self._seen = number

    def notify(self, number: int) -> None:
        """Report a change number, from any thread. One that is not new is ignored."""
        if number > self._latest:
            self._latest = number
            self.wake_all()

    def wake_all(self) -> None:
        """Wake all waiting tasks, from any thread."""
        # RuntimeError: the loop is closed, so no task waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake_waiters)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        """Return whether there was a change since the last call, or is one within `timeout`."""
        if self._seen < self._latest:
            self._seen = self._latest
            return True
        event = self._event
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._clock.sleep(timeout))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._seen = self._latest
        return event.is_set()

    def _wake_waiters(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


_log = logging.getLogger(__name__)

#: How often to poll for changes of other processes while a task waits for one.
_POLL_INTERVAL_S = 0.05
#: Heartbeats that a worker may miss before its lease ends.
_BEATS_PER_LEASE = 5
#: How long after a failed deregistration it is repeated.
_LEAVE_RETRY_S = 1.0


class Heartbeat:
    """Writes the heartbeats of all workers of a store, and polls for changes of other processes.

    On its own thread: a worker whose event loop is blocked for a while is not dead. If the writer has failed, or its
    event loop was closed, it deregisters the workers instead, so that other processes resume their runs. It also
    deregisters workers that left while the file could not be written, even after `stop`.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        lease_timeout: timedelta,
        liveness: Liveness,
        on_change: Callable[[int], None],
        can_write: Callable[[], bool],
    ) -> None:
        """`can_write`: whether the writer still works."""
        self._database = database
        self._clock = clock
        self._liveness = liveness
        self._interval_s = lease_timeout.total_seconds() / _BEATS_PER_LEASE
        self._on_change = on_change
        self._can_write = can_write
        self._threads = THREADS.get()
        self._condition = self._threads.make_condition()
        self._workers: dict[str, WorkerIdentity] = {}
        #: They are being deregistered, or that failed.
        self._leaving: set[str] = set()
        self._waiters = 0
        self._stopping = False
        self._thread: Thread | None = None
        self._next_beat = 0.0
        #: `PRAGMA data_version` of the last poll: it changes with commits of other connections.
        self._data_version: int | None = None

    def add(self, worker: WorkerIdentity) -> None:
        """Start the heartbeat of a worker that was just registered."""
        with self._condition:
            self._workers[worker.worker_id] = worker
            self._next_beat = self._threads.monotonic() + self._interval_s
            self._start()

    def leave(self, worker_id: str) -> None:
        """Stop the heartbeat of a worker, before it is deregistered. Without `left` the thread deregisters it later."""
        with self._condition:
            self._workers.pop(worker_id, None)
            self._leaving.add(worker_id)
            self._next_beat = self._threads.monotonic() + _LEAVE_RETRY_S
            self._start()
            self._condition.notify()

    def left(self, worker_id: str) -> None:
        """The worker was deregistered."""
        with self._condition:
            self._leaving.discard(worker_id)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Poll for changes of other processes within the block."""
        with self._condition:
            self._waiters += 1
            self._start()
            self._condition.notify()
        try:
            yield
        finally:
            with self._condition:
                self._waiters -= 1

    def stop(self) -> None:
        """Stop the thread. If workers are still to be deregistered, it stops when that is done."""
        with self._condition:
            self._stopping = True
            has_left = not self._leaving
            self._condition.notify()
        if self._thread is not None and has_left:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = self._threads.start(self._run, name="holdfast-sqlite-heartbeat")

    # -- in its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping or self._leaving:
            try:
                self._serve()
            except StoreError:
                _log.warning("could not write heartbeats, will retry", exc_info=True)
                if self._stopping:
                    self._threads.sleep(_LEAVE_RETRY_S)
                with self._condition:
                    self._condition.wait_for(self._is_stopping, timeout=self._interval_s / 2)

    def _serve(self) -> None:
        connection = self._database.connect_writer(self._may_wait_for_lock)
        try:
            with self._database.mapped_errors(connection):
                # A power cut may take heartbeats back.
                set_synchronous(connection, False)
                while not self._stopping:
                    if (self._workers or self._leaving) and self._threads.monotonic() >= self._next_beat:
                        self._write_heartbeats(connection)
                    if self._waiters:
                        self._poll_changes(connection)
                    self._wait()
                if self._leaving or not self._can_write():
                    self._write_heartbeats(connection)
        finally:
            connection.close()

    def _wait(self) -> None:
        with self._condition:
            idle = self._waiters == 0
            has_beats = self._workers or self._leaving
            wait = max(0.0, self._next_beat - self._threads.monotonic()) if has_beats else None
            if not idle:
                wait = _POLL_INTERVAL_S if wait is None else min(wait, _POLL_INTERVAL_S)
            self._condition.wait_for(self._is_stopping_or_polled if idle else self._is_stopping, timeout=wait)

    def _is_stopping(self) -> bool:
        return self._stopping

    def _is_stopping_or_polled(self) -> bool:
        return self._stopping or self._waiters > 0

    def _may_wait_for_lock(self) -> bool:
        return not self._stopping

    def _write_heartbeats(self, connection: apsw.Connection) -> None:
        self._next_beat = self._threads.monotonic() + self._interval_s
        self._database.check_files()
        with transaction(connection):
            # Read within the transaction, so that a concurrent deregister is ordered after this heartbeat.
            with self._condition:
                if not self._can_write():
                    self._leaving |= self._workers.keys()
                    self._workers.clear()
                workers, leaving = list(self._workers), list(self._leaving)
            now = to_micros(self._clock.now())
            deregistered = [worker_id for worker_id in workers if not _beat(connection, worker_id, now)]
            _forget_workers(self._liveness, connection.execute)
            for worker_id in leaving:
                connection.execute(statement("deregister_worker"), (worker_id,))
        with self._condition:
            self._leaving.difference_update(leaving)
            # Not registered again: other workers may already have its runs.
            lost = [worker_id for worker_id in deregistered if self._workers.pop(worker_id, None) is not None]
        for worker_id in lost:
            _log.error("another process deregistered worker %s: others resume its runs; restart it", worker_id)

    def _poll_changes(self, connection: apsw.Connection) -> None:
        version = connection.pragma("data_version")
        if version != self._data_version:
            self._data_version = version
            self._on_change(Transaction(connection, self._clock.now()).read_change_number())


def _beat(connection: apsw.Connection, worker_id: str, now: int) -> bool:
    """Change the heartbeat of the worker. Return False if it is no longer registered."""
    connection.execute(statement("beat"), (worker_id, now))
    return connection.changes() == 1
