"""A thread that shows other processes that this one's workers live, and looks for what those changed."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import apsw

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.stores.sqlite.database import Database, sync_each_commit
from holdfast.checkpoint.stores.sqlite.failures import store_errors
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import to_micros
from holdfast.clock import Clock

_log = logging.getLogger(__name__)

#: While somebody waits for a change, other processes' changes are looked for so often.
_LOOK_EVERY = 0.05
#: So many heartbeats have to be missed before a worker is taken for dead.
_BEATS = 5


class Pulse:
    """One thread and one connection for a store, whatever the number of its workers and runs.

    Not the event loop: one that is blocked for a while must not look dead. But a store that can write no more has no
    live workers: it discharges them, so that others go on with their runs.
    """

    def __init__(
        self,
        database: Database,
        clock: Clock,
        dead_after: timedelta,
        on_signal: Callable[[int], None],
        writes: Callable[[], bool],
    ) -> None:
        """`writes` says whether the store can still write."""
        self._database = database
        self._clock = clock
        self._beat_every = dead_after.total_seconds() / _BEATS
        self._on_signal = on_signal
        self._writes = writes
        self._wake = threading.Condition()
        self._workers: dict[str, Worker] = {}
        self._watchers = 0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._next_beat = 0.0
        #: What SQLite said the last time it was asked whether anything was committed.
        self._version: int | None = None

    def add(self, worker: Worker) -> None:
        """Keep up the heartbeat of a worker that was just enlisted."""
        with self._wake:
            self._workers[worker.worker_id] = worker
            self._next_beat = time.monotonic() + self._beat_every
            self._start()

    def drop(self, worker_id: str) -> Worker | None:
        """To be called before the worker is discharged. Gives the worker, if it had a heartbeat."""
        with self._wake:
            return self._workers.pop(worker_id, None)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile, other processes' signals are looked for."""
        with self._wake:
            self._watchers += 1
            self._start()
            self._wake.notify()
        try:
            yield
        finally:
            with self._wake:
                self._watchers -= 1

    def stop(self) -> None:
        """End the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        if self._thread is None and not self._stopping:
            self._thread = threading.Thread(target=self._run, name="holdfast-sqlite-pulse", daemon=True)
            self._thread.start()

    # -- in its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._keep_going()
            except StoreError:
                _log.warning("no heartbeat for now", exc_info=True)
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping, timeout=self._beat_every / 2)

    def _keep_going(self) -> None:
        connection = self._database.writer(may_wait=lambda: not self._stopping)
        try:
            with store_errors(self._database.path, connection):
                # A heartbeat that a power cut takes back is no loss.
                sync_each_commit(connection, False)
                while not self._stopping:
                    if self._workers and time.monotonic() >= self._next_beat:
                        self._beat(connection)
                    if self._watchers:
                        self._look(connection)
                    self._pause()
                if not self._writes():
                    self._beat(connection)
        finally:
            connection.close()

    def _pause(self) -> None:
        with self._wake:
            idle = self._watchers == 0
            wait = max(0.0, self._next_beat - time.monotonic()) if self._workers else None
            if not idle:
                wait = _LOOK_EVERY if wait is None else min(wait, _LOOK_EVERY)
            self._wake.wait_for(lambda: self._stopping or (idle and self._watchers > 0), timeout=wait)

    def _beat(self, connection: apsw.Connection) -> None:
        now = to_micros(self._clock.now())
        self._next_beat = time.monotonic() + self._beat_every
        connection.execute(statement("begin"))
        try:
            # Only now: whoever is dropped after this is discharged after this.
            with self._wake:
                workers = list(self._workers.values())
            for worker in workers:
                process = worker.process
                if self._writes():
                    row = (worker.worker_id, process.host, process.pid, process.started, now)
                    connection.execute(statement("enlist"), row)
                else:
                    connection.execute(statement("discharge"), (worker.worker_id,))
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _look(self, connection: apsw.Connection) -> None:
        version = connection.pragma("data_version")
        if version != self._version:
            self._version = version
            _, signal = connection.execute(statement("read_counters")).get
            self._on_signal(signal)
