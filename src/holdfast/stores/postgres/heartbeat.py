"""The heartbeat of a store's workers."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.claims import WorkerIdentity
from holdfast.db.postgres_connection import PgConnection
from holdfast.stores.postgres.database import Database, escape_text, unescape_text

log = logging.getLogger("holdfast.stores.postgres")

REGISTER_SQL = "select holdfast.beat($1::text[], $2::text[], $3::bigint[], $4::text[], $5::float8)"
_RENEW_SQL = "select holdfast.renew($1::text[], $2::float8)"

#: Heartbeats within the lease timeout. One is given up after two intervals, so that another connection can be tried
#: before the lease ends.
_BEATS_PER_LEASE, _MAX_BEAT_INTERVALS = 5, 2
#: Pause after a failed heartbeat, and how long a worker that leaves waits for one under way.
_RETRY_AFTER_S, _CLOSE_TIMEOUT_S = 1.0, 5.0
#: Rows of workers without a heartbeat for seven days are deleted by the next store that opens.
_STALE_AFTER_S = timedelta(days=7).total_seconds()


def register_params(workers: Sequence[WorkerIdentity], lease_timeout: timedelta) -> tuple[Any, ...]:
    """Return the parameters of `REGISTER_SQL`."""
    return (
        [escape_text(worker.worker_id) for worker in workers],
        [escape_text(worker.process.host) for worker in workers],
        [worker.process.pid for worker in workers],
        [escape_text(worker.process.started) for worker in workers],
        lease_timeout.total_seconds(),
    )


class Heartbeat:
    """Renews the leases of this process's workers, by the server's clock.

    It has a thread, an event loop and a connection of its own: a tool that blocks the main event loop for an hour does
    not make its worker look dead. A stopped process does, to other hosts.
    """

    def __init__(self, database: Database, lease_timeout: timedelta) -> None:
        self._database, self._lease_timeout = database, lease_timeout
        self._register_sql = database.sql.with_schema(REGISTER_SQL)
        self._renew_sql = database.sql.with_schema(_RENEW_SQL)
        self._workers: dict[str, WorkerIdentity] = {}
        self._lock = threading.Lock()
        #: Held while a heartbeat is under way.
        self._beat_lock = threading.Lock()
        self._connection: PgConnection | None = None
        #: The time of the last heartbeat; a suspended host counts on.
        self._sent_at = time.time()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def worker_ids(self) -> list[str]:
        with self._lock:
            return list(self._workers)

    def add(self, worker: WorkerIdentity) -> None:
        with self._lock:
            self._workers[worker.worker_id] = worker
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-postgres-heartbeat", daemon=True)
            self._thread.start()

    async def remove(self, worker_id: str) -> None:
        """Stop the heartbeat of this worker. Only one that hangs at the server may still arrive afterwards."""
        with self._lock:
            if self._workers.pop(worker_id, None) is None:
                return
        await asyncio.to_thread(self._wait_for_beat)

    async def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # The thread ends after its heartbeat, or with the process.
            await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)

    def _wait_for_beat(self) -> None:
        if self._beat_lock.acquire(timeout=_CLOSE_TIMEOUT_S):
            self._beat_lock.release()

    def _run(self) -> None:
        interval = self._lease_timeout.total_seconds() / _BEATS_PER_LEASE
        pause = interval
        with asyncio.Runner() as runner:
            while not self._stop.wait(pause):
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
            workers = list(self._workers.values())
        if not workers:
            return
        deadline = asyncio.get_running_loop().time() + timeout
        if self._connection is None or self._connection.is_closed:
            self._connection = await self._database.connect(deadline=deadline)
        try:
            params = ([escape_text(worker.worker_id) for worker in workers], self._lease_timeout.total_seconds())
            rows = await self._connection.execute(self._renew_sql, params, deadline=deadline)
            renewed = {unescape_text(worker_id) for (worker_id,) in rows}
            missing = [worker for worker in workers if worker.worker_id not in renewed]
            if missing and time.time() - self._sent_at >= _STALE_AFTER_S:
                lost = register_params(missing, self._lease_timeout)
                await self._connection.execute(self._register_sql, lost, deadline=deadline)
            else:
                self._drop(missing)
            self._sent_at = time.time()
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
