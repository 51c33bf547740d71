"""Who is alive: at once and for sure on this host, by heartbeat elsewhere.

The signs by which a store's waiters learn that something may have changed.

A thread that shows other processes that this one's workers live, and looks for what those changed.
"""

import asyncio
import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import apsw

from holdfast.checkpoint.claim import ProcessIdentity, WorkerIdentity, is_process_alive, this_process
from holdfast.checkpoint.errors import StoreError
from holdfast.clock import Clock
from holdfast.stores.sqlite.database import Database, set_synchronous, statement, store_errors
from holdfast.stores.sqlite.transaction import Execute, Transaction, from_micros, to_micros


@functools.cache
def _own_process(pid: int) -> ProcessIdentity:
    """The process that asks lives: no need to look, for each of a thousand runs that it has just claimed."""
    return this_process()


class Liveness:
    """Tells whether a worker is alive, from its row.

    A worker without a row is dead: it was discharged, or found dead and struck off.
    """

    def __init__(self, execute: Execute, now: datetime, lease_timeout: timedelta) -> None:
        self._execute = execute
        self._now = now
        self._lease_timeout = lease_timeout

    def is_alive(self, worker_id: str | None) -> bool:
        if worker_id is None:
            return False
        row = self._execute(statement("get_worker"), (worker_id,)).get
        return row is not None and self._is_row_alive(row)

    def alive_workers(self) -> frozenset[str]:
        return frozenset(
            row[0] for row in self._execute(statement("list_workers")).fetchall() if self._is_row_alive(row)
        )

    def dead_workers(self) -> list[str]:
        """The workers that have a row and are dead."""
        return [row[0] for row in self._execute(statement("list_workers")).fetchall() if not self._is_row_alive(row)]

    def _is_row_alive(self, row: tuple[str, str, int, str, int]) -> bool:
        _, host, pid, started, heartbeat_at = row
        process = ProcessIdentity(host=host, pid=pid, started=started)
        known = process == _own_process(os.getpid()) or is_process_alive(process)
        if known is not None:
            return known
        return self._now - from_micros(heartbeat_at) < self._lease_timeout


def register_worker(worker: WorkerIdentity, lease_timeout: timedelta, transaction: Transaction) -> None:
    # Here, so that the rows of workers that died do not add up.
    for worker_id in Liveness(transaction.execute, transaction.now, lease_timeout).dead_workers():
        transaction.execute(statement("deregister_worker"), (worker_id,))
    process = worker.process
    row = (worker.worker_id, process.host, process.pid, process.started, transaction.now_micros)
    transaction.execute(statement("register_worker"), row)


def deregister_worker(worker_id: str, transaction: Transaction) -> None:
    transaction.execute(statement("deregister_worker"), (worker_id,))
    transaction.notify = True


class ChangeNotifier:
    """Collects signals of this process and of others, and wakes who waits in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._latest = self._seen = 0
        self._event = asyncio.Event()

    def start(self, number: int) -> None:
        """What was signalled so far is old."""
        self._latest = self._seen = number

    def notify(self, number: int) -> None:
        """Something changed. From any thread; a number that is not new says nothing."""
        if number > self._latest:
            self._latest = number
            self.wake_all()

    def wake_all(self) -> None:
        """Let everybody look. From any thread."""
        # A loop that is closed has nobody left who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake_waiters)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        """Whether there was a signal since the last answer, or comes one in time."""
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

#: While somebody waits for a change, other processes' changes are looked for so often.
_POLL_INTERVAL_S = 0.05
#: So many heartbeats have to be missed before a worker is taken for dead.
_BEATS_PER_LEASE = 5


class Heartbeat:
    """One thread and one connection for a store, whatever the number of its workers and runs.

    Not the event loop: one that is blocked for a while must not look dead. But a store that can write no more has no
    live workers: it discharges them, so that others go on with their runs.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        lease_timeout: timedelta,
        on_change: Callable[[int], None],
        can_write: Callable[[], bool],
    ) -> None:
        """`writes` says whether the store can still write."""
        self._database = database
        self._clock = clock
        self._interval_s = lease_timeout.total_seconds() / _BEATS_PER_LEASE
        self._on_change = on_change
        self._can_write = can_write
        self._condition = threading.Condition()
        self._workers: dict[str, WorkerIdentity] = {}
        self._waiters = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0
        #: What SQLite said the last time it was asked whether anything was committed.
        self._data_version: int | None = None

    def add(self, worker: WorkerIdentity) -> None:
        """Keep up the heartbeat of a worker that was just enlisted."""
        with self._condition:
            self._workers[worker.worker_id] = worker
            self._next_beat = time.monotonic() + self._interval_s
            self._start()

    def remove(self, worker_id: str) -> WorkerIdentity | None:
        """To be called before the worker is discharged. Gives the worker, if it had a heartbeat."""
        with self._condition:
            return self._workers.pop(worker_id, None)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Meanwhile, other processes' signals are looked for."""
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
        """End the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name="holdfast-sqlite-heartbeat", daemon=True)
            self._thread.start()

    # -- in its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._serve()
            except StoreError:
                _log.warning("no heartbeat for now", exc_info=True)
                with self._condition:
                    self._condition.wait_for(lambda: self._stopping, timeout=self._interval_s / 2)

    def _serve(self) -> None:
        connection = self._database.connect_writer(may_wait=lambda: not self._stopping)
        try:
            with store_errors(self._database.path, connection):
                # A heartbeat that a power cut takes back is no loss.
                set_synchronous(connection, False)
                while not self._stopping:
                    if self._workers and time.monotonic() >= self._next_beat:
                        self._write_heartbeats(connection)
                    if self._waiters:
                        self._poll_changes(connection)
                    self._wait()
                if not self._can_write():
                    self._write_heartbeats(connection)
        finally:
            connection.close()

    def _wait(self) -> None:
        with self._condition:
            idle = self._waiters == 0
            wait = max(0.0, self._next_beat - time.monotonic()) if self._workers else None
            if not idle:
                wait = _POLL_INTERVAL_S if wait is None else min(wait, _POLL_INTERVAL_S)
            self._condition.wait_for(lambda: self._stopping or (idle and self._waiters > 0), timeout=wait)

    def _write_heartbeats(self, connection: apsw.Connection) -> None:
        now = to_micros(self._clock.now())
        self._next_beat = time.monotonic() + self._interval_s
        connection.execute(statement("begin"))
        try:
            # Only now: whoever is dropped after this is discharged after this.
            with self._condition:
                workers = list(self._workers.values())
            for worker in workers:
                process = worker.process
                if self._can_write():
                    row = (worker.worker_id, process.host, process.pid, process.started, now)
                    connection.execute(statement("register_worker"), row)
                else:
                    connection.execute(statement("deregister_worker"), (worker.worker_id,))
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _poll_changes(self, connection: apsw.Connection) -> None:
        version = connection.pragma("data_version")
        if version != self._data_version:
            self._data_version = version
            _, signal = connection.execute(statement("read_counters")).get
            self._on_change(signal)
