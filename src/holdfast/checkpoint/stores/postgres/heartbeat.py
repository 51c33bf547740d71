"""The sign of life of a store's workers."""

import asyncio
import logging
import threading
from datetime import timedelta

import psycopg

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.stores.postgres.database import Database
from holdfast.checkpoint.stores.postgres.text import to_text

log = logging.getLogger("holdfast.checkpoint.postgres")

#: Beats in the time after which other hosts take a silent worker for dead.
_BEATS = 5
#: Until the next try after a beat that failed, and the longest wait for one that is under way when the store is closed.
_SOON, _PARTING = 1.0, 5.0


class Heartbeat:
    """Says again and again, by the server's clock, that the workers of this process are alive.

    A thread with a connection of its own: a tool that blocks the event loop for an hour does not make its worker look
    dead. A process that stands still does, to other hosts.
    """

    def __init__(self, database: Database, dead_after: timedelta) -> None:
        self._database, self._dead_after = database, dead_after
        self._statement = database.scripts.inline("select holdfast.beat(%s, %s, %s, %s, %s)").encode()
        self._workers: dict[str, Worker] = {}
        self._lock = threading.Lock()
        #: Held while a beat is under way.
        self._beating = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def worker_ids(self) -> list[str]:
        with self._lock:
            return list(self._workers)

    def add(self, worker: Worker) -> None:
        with self._lock:
            self._workers[worker.worker_id] = worker
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="holdfast-postgres-heartbeat", daemon=True)
            self._thread.start()

    async def drop(self, worker_id: str) -> None:
        """Once this returns, no beat says any more that this worker is alive."""
        with self._lock:
            if self._workers.pop(worker_id, None) is None:
                return
        await asyncio.to_thread(self._wait_for_the_beat)

    async def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # A beat may hang as long as the server does. The thread ends after it, or with the process.
            await asyncio.to_thread(self._thread.join, _PARTING)

    def _wait_for_the_beat(self) -> None:
        with self._beating:
            pass

    def _beat(self) -> None:
        connection: psycopg.Connection | None = None
        interval = self._dead_after.total_seconds() / _BEATS
        pause = interval
        while not self._stop.wait(pause):
            try:
                if connection is None:
                    connection = psycopg.connect(self._database.conninfo, autocommit=True, prepare_threshold=None)
                self._beat_once(connection)
                pause = interval
            except psycopg.Error as exc:
                log.warning("%s: no heartbeat could be written: %s", self._database.where, exc)
                pause = min(interval, _SOON)
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()

    def _beat_once(self, connection: psycopg.Connection) -> None:
        with self._beating:
            with self._lock:
                workers = list(self._workers.values())
            if workers:
                ids = [to_text(worker.worker_id) for worker in workers]
                hosts = [to_text(worker.process.host) for worker in workers]
                started = [to_text(worker.process.started) for worker in workers]
                pids = [worker.process.pid for worker in workers]
                connection.execute(self._statement, [ids, hosts, pids, started, self._dead_after.total_seconds()])
