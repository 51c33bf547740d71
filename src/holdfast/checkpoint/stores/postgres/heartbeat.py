"""The sign of life of a store's workers."""

import asyncio
import logging
import threading
from datetime import timedelta

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.database import Database
from holdfast.checkpoint.stores.postgres.text import to_text
from holdfast.checkpoint.stores.postgres.wire import Link

log = logging.getLogger("holdfast.checkpoint.postgres")

#: Beats in the time after which other hosts take a silent worker for dead; and one is given up after the time of so
#: many, so that there is still time for another, on another connection.
_BEATS, _LONGEST_BEAT = 5, 2
#: Until the next try after a beat that failed, and the longest wait for one that is under way when a worker leaves.
_SOON, _PARTING = 1.0, 5.0


class Heartbeat:
    """Says again and again, by the server's clock, that the workers of this process are alive.

    A thread with a connection and an event loop of its own: a tool that blocks the other loop for an hour does not make
    its worker look dead. A process that stands still does, to other hosts.
    """

    def __init__(self, database: Database, dead_after: timedelta) -> None:
        self._database, self._dead_after = database, dead_after.total_seconds()
        self._statement = database.scripts.inline("select holdfast.beat($1, $2, $3, $4, $5)").encode()
        self._workers: dict[str, Worker] = {}
        self._lock = threading.Lock()
        #: Held while a beat is under way.
        self._beating = threading.Lock()
        self._link: Link | None = None
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
        """Once this returns, no beat says any more that this worker is alive, unless one hangs at the server."""
        with self._lock:
            if self._workers.pop(worker_id, None) is None:
                return
        await asyncio.to_thread(self._wait_for_the_beat)

    async def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            # The thread ends after its beat, or with the process.
            await asyncio.to_thread(self._thread.join, _PARTING)

    def _wait_for_the_beat(self) -> None:
        if self._beating.acquire(timeout=_PARTING):
            self._beating.release()

    def _beat(self) -> None:
        interval = self._dead_after / _BEATS
        pause = interval
        with asyncio.Runner() as runner:
            while not self._stop.wait(pause):
                try:
                    with self._beating:
                        runner.run(self._beat_once(_LONGEST_BEAT * interval))
                    pause = interval
                except Exception as exc:  # whatever it is, without another beat the worker would be taken for dead
                    said = str(exc) or "there was no answer"
                    log.warning("%s: no heartbeat could be written: %s", self._database.where, said)
                    pause = min(interval, _SOON)
            runner.run(self._hang_up())

    async def _beat_once(self, limit: float) -> None:
        with self._lock:
            workers = list(self._workers.values())
        if not workers:
            return
        values = (
            wire.texts([to_text(worker.worker_id) for worker in workers]),
            wire.texts([to_text(worker.process.host) for worker in workers]),
            wire.bigints([worker.process.pid for worker in workers]),
            wire.texts([to_text(worker.process.started) for worker in workers]),
            wire.float8(self._dead_after),
        )
        types = (wire.TEXTS, wire.TEXTS, wire.BIGINTS, wire.TEXTS, wire.FLOAT)
        until = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(until):
                if self._link is None:
                    self._link = Link(await self._database.connect())
                await self._link.call(self._statement, types, values, until=until)
        except BaseException:
            await self._hang_up()
            raise

    async def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()
