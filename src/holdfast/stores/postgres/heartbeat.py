"""The sign of life of a store's workers."""

import asyncio
import logging
import threading
from datetime import timedelta

from holdfast.checkpoint.claim import WorkerIdentity
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.connection import PgConnection, escape_text
from holdfast.stores.postgres.database import Database

log = logging.getLogger("holdfast.stores.postgres")

#: Beats in the time after which other hosts take a silent worker for dead; and one is given up after the time of so
#: many, so that there is still time for another, on another connection.
_BEATS_PER_LEASE, _MAX_BEAT_INTERVALS = 5, 2
#: Until the next try after a beat that failed, and the longest wait for one that is under way when a worker leaves.
_RETRY_AFTER_S, _CLOSE_TIMEOUT_S = 1.0, 5.0


class Heartbeat:
    """Says again and again, by the server's clock, that the workers of this process are alive.

    A thread with a connection and an event loop of its own: a tool that blocks the other loop for an hour does not make
    its worker look dead. A process that stands still does, to other hosts.
    """

    def __init__(self, database: Database, lease_timeout: timedelta) -> None:
        self._database, self._lease_timeout_s = database, lease_timeout.total_seconds()
        self._statement = database.sql.with_schema("select holdfast.beat($1, $2, $3, $4, $5)").encode()
        self._workers: dict[str, WorkerIdentity] = {}
        self._lock = threading.Lock()
        #: Held while a beat is under way.
        self._beat_lock = threading.Lock()
        self._connection: PgConnection | None = None
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
        """Once this returns, no beat says any more that this worker is alive, unless one hangs at the server."""
        with self._lock:
            if self._workers.pop(worker_id, None) is None:
                return
        await asyncio.to_thread(self._wait_for_beat)

    async def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # The thread ends after its beat, or with the process.
            await asyncio.to_thread(self._thread.join, _CLOSE_TIMEOUT_S)

    def _wait_for_beat(self) -> None:
        if self._beat_lock.acquire(timeout=_CLOSE_TIMEOUT_S):
            self._beat_lock.release()

    def _run(self) -> None:
        interval = self._lease_timeout_s / _BEATS_PER_LEASE
        pause = interval
        with asyncio.Runner() as runner:
            while not self._stop.wait(pause):
                try:
                    with self._beat_lock:
                        runner.run(self._send_heartbeat(_MAX_BEAT_INTERVALS * interval))
                    pause = interval
                except Exception as exc:  # whatever it is, without another beat the worker would be taken for dead
                    said = str(exc) or "there was no answer"
                    log.warning("%s: no heartbeat could be written: %s", self._database.label, said)
                    pause = min(interval, _RETRY_AFTER_S)
            runner.run(self._close_connection())

    async def _send_heartbeat(self, timeout: float) -> None:
        with self._lock:
            workers = list(self._workers.values())
        if not workers:
            return
        values = (
            connection.encode_texts([escape_text(worker.worker_id) for worker in workers]),
            connection.encode_texts([escape_text(worker.process.host) for worker in workers]),
            connection.encode_bigints([worker.process.pid for worker in workers]),
            connection.encode_texts([escape_text(worker.process.started) for worker in workers]),
            connection.encode_float8(self._lease_timeout_s),
        )
        types = (connection.TEXTS, connection.TEXTS, connection.BIGINTS, connection.TEXTS, connection.FLOAT)
        until = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(until):
                if self._connection is None:
                    self._connection = PgConnection(await self._database.connect())
                await self._connection.call(self._statement, types, values, deadline=until)
        except BaseException:
            await self._close_connection()
            raise

    async def _close_connection(self) -> None:
        link, self._connection = self._connection, None
        if link is not None:
            await link.close()
