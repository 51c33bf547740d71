"""The heartbeat of a store's workers."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.workers import WorkerIdentity, encode_agents
from holdfast.clock import CLOCK
from holdfast.concurrency import THREADS, Thread
from holdfast.db.postgres_connection import PgConnection
from holdfast.stores.postgres.database import Database, escape_text, unescape_text

log = logging.getLogger("holdfast.stores.postgres")

REGISTER_SQL = "select holdfast.beat($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::float8)"
DEREGISTER_SQL = "select holdfast.discharge($1::text[])"
_RENEW_SQL = "select holdfast.renew($1::text[], $2::float8)"

#: Heartbeats within the lease timeout. One is given up after two intervals, so that another connection can be tried
#: before the lease ends.
_BEATS_PER_LEASE, _MAX_BEAT_INTERVALS = 5, 2
#: Pause after a failed heartbeat, and how long a worker that leaves waits for one in progress.
_RETRY_AFTER_S, _CLOSE_TIMEOUT_S = 1.0, 5.0
#: Rows of workers without a heartbeat for seven days are deleted by the next store that opens.
_STALE_AFTER = timedelta(days=7)


def register_params(workers: Sequence[WorkerIdentity], lease_timeout: timedelta) -> tuple[Any, ...]:
    """Return the parameters of `REGISTER_SQL`."""
    return (
        [escape_text(worker.worker_id) for worker in workers],
        [escape_text(worker.process.host) for worker in workers],
        [worker.process.pid for worker in workers],
        [escape_text(worker.process.started) for worker in workers],
        [encode_agents(worker.agents) for worker in workers],
        lease_timeout.total_seconds(),
    )


class Heartbeat:
    """Renews the leases of this process's workers, by the server's clock.

    It has a thread, an event loop and a connection of its own: a tool that blocks the main event loop for an hour does
    not make its worker look dead. A stopped process does, to other hosts.

    It deregisters workers that left while the server did not answer, even after `stop`, and all workers of an
    event loop that was closed. A worker that is still registered at `stop` keeps its claims on purpose: its heartbeat
    continues until the event loop ends, and on its own host it counts as alive until the process ends.
    """

    def __init__(self, database: Database, lease_timeout: timedelta) -> None:
        self._database, self._lease_timeout = database, lease_timeout
        self._register_sql = database.sql.with_schema(REGISTER_SQL)
        self._renew_sql = database.sql.with_schema(_RENEW_SQL)
        self._deregister_sql = database.sql.with_schema(DEREGISTER_SQL)
        self._workers: dict[str, WorkerIdentity] = {}
        #: They are being deregistered, or that failed.
        self._leaving: set[str] = set()
        self._loop = asyncio.get_running_loop()
        self._threads = THREADS.get()
        self._lock = self._threads.make_lock()
        #: Held while a heartbeat is in progress.
        self._beat_lock = self._threads.make_lock()
        self._connection: PgConnection | None = None
        self._clock = CLOCK.get()
        #: The time of the last heartbeat, by a clock that also counts while the host is suspended.
        self._sent_at = self._clock.now()
        self._stop = self._threads.make_event()
        self._thread: Thread | None = None

    def add(self, worker: WorkerIdentity) -> None:
        with self._lock:
            self._workers[worker.worker_id] = worker
        self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = self._threads.start(self._run, name="holdfast-postgres-heartbeat")

    async def leave(self, worker_id: str) -> None:
        """Stop the heartbeat of this worker. Only one that hangs at the server may still arrive afterwards.

        Without `left` the thread deregisters the worker later.
        """
        with self._lock:
            worker = self._workers.pop(worker_id, None)
            self._leaving.add(worker_id)
        self._start()
        if worker is not None:
            await asyncio.to_thread(self._wait_for_beat)

    def left(self, worker_ids: Iterable[str]) -> None:
        """The workers were deregistered."""
        with self._lock:
            self._leaving.difference_update(worker_ids)

    async def stop(self) -> None:
        self._stop.set()
        if self._thread is not None and not self._is_needed():
            # The thread ends after its heartbeat, or with the process.
            await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)

    def _is_needed(self) -> bool:
        """Return whether there is work after `stop`: workers to deregister, or such that keep their claims."""
        return bool(self._leaving or (self._workers and not self._loop.is_closed()))

    def _wait_for_beat(self) -> None:
        if self._beat_lock.acquire(timeout=_CLOSE_TIMEOUT_S):
            self._beat_lock.release()

    def _run(self) -> None:
        interval = self._lease_timeout.total_seconds() / _BEATS_PER_LEASE
        pause = interval
        with asyncio.Runner() as runner:
            while not self._stop.wait(pause) or self._is_needed():
                if self._stop.is_set():
                    self._threads.sleep(min(pause, _RETRY_AFTER_S))
                try:
                    with self._beat_lock:
                        runner.run(self._send_heartbeat(_MAX_BEAT_INTERVALS * interval))
                    pause = interval
                except Exception as exc:  # of any kind: without another heartbeat the worker would count as dead
                    log.warning("%s: the heartbeat failed: %s", self._database.label, exc)
                    pause = min(interval, _RETRY_AFTER_S)
            if self._connection is not None:
                self._connection.close()

    async def _send_heartbeat(self, timeout: float) -> None:
        with self._lock:
            if self._loop.is_closed() and not self._stop.is_set():
                self._leaving |= self._workers.keys()
                self._workers.clear()
            workers, leaving = list(self._workers.values()), list(self._leaving)
        if not workers and not leaving:
            return
        deadline = asyncio.get_running_loop().time() + timeout
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._database.connect(deadline=deadline)
        try:
            if leaving:
                gone = [escape_text(worker_id) for worker_id in leaving]
                await self._connection.execute(self._deregister_sql, (gone,), deadline=deadline)
                self.left(leaving)
            params = ([escape_text(worker.worker_id) for worker in workers], self._lease_timeout.total_seconds())
            rows = await self._connection.execute(self._renew_sql, params, deadline=deadline)
            renewed = {unescape_text(worker_id) for (worker_id,) in rows}
            missing = [worker for worker in workers if worker.worker_id not in renewed]
            if missing and self._clock.now() - self._sent_at >= _STALE_AFTER:
                lost = register_params(missing, self._lease_timeout)
                await self._connection.execute(self._register_sql, lost, deadline=deadline)
            else:
                self._drop(missing)
            self._sent_at = self._clock.now()
        except BaseException:
            self._connection.close()
            raise

    def _drop(self, workers: Sequence[WorkerIdentity]) -> None:
        """Send no more heartbeats of workers that another process deregistered."""
        for worker in workers:
            with self._lock:
                dropped = self._workers.pop(worker.worker_id, None)
            if dropped is not None:
                log.warning("%s: another process deregistered worker %s", self._database.label, worker.worker_id)
