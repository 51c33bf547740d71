"""Group commit in as little as it takes: one thread commits whatever is waiting."""

import asyncio
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from bench.systems.raw.log import Log
from bench.systems.raw.row import Row

Waiting = tuple[Sequence[Row], "asyncio.Future[None]"]


class GroupCommit:
    """Appends of many tasks to one log."""

    def __init__(self, log: Log) -> None:
        self._log, self._loop = log, asyncio.get_running_loop()
        self._queue: SimpleQueue[Waiting | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def append(self, rows: Sequence[Row]) -> None:
        done = self._loop.create_future()
        self._queue.put((rows, done))
        await done

    def stop(self) -> None:
        """Nothing is waiting any more."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (waiting := self._queue.get()) is not None:
            batch = [waiting]
            try:
                while (waiting := self._queue.get_nowait()) is not None:
                    batch.append(waiting)
            except Empty:
                pass
            self._log.append([row for rows, _ in batch for row in rows])
            self._loop.call_soon_threadsafe(_resolve, batch)


def _resolve(batch: list[Waiting]) -> None:
    for _, done in batch:
        done.set_result(None)
