"""Group commit: the writes that wait are committed together."""

import asyncio

from holdfast.adapters.langgraph.saver.batch import RowBatch, StreamsTaken
from holdfast.adapters.langgraph.saver.requests import WriteRequest
from holdfast.adapters.langgraph.saver.values import ChannelKey, ListCache
from holdfast.db.tables import Cursor, Tables, TablesUnavailable

#: Bounds the time that a commit takes.
_MAX_BATCH = 1_000


class GroupWriter:
    """Commits one batch after the other. What arrives meanwhile is the next batch."""

    def __init__(self, tables: Tables, cache: ListCache) -> None:
        self._tables, self._cache = tables, cache
        self._waiting: list[tuple[WriteRequest, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def write(self, request: WriteRequest) -> None:
        """Return when the request is committed. If the caller is cancelled, it is written all the same.

        Raises:
            TablesError: nothing of it was written.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((request, done))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await done

    async def drain(self) -> None:
        """Wait until nothing waits any more."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                await self._commit_batch(batch)
        finally:
            self._running = None

    async def _commit_batch(self, batch: list[tuple[WriteRequest, "asyncio.Future[None]"]]) -> None:
        try:
            await self._commit([request for request, _ in batch])
        except Exception as exc:  # of the database, or of the driver for a value that it cannot store
            if len(batch) > 1 and not isinstance(exc, TablesUnavailable):
                for each in batch:  # one of them is refused: the others do not fail with it
                    await self._commit_batch([each])
                return
            for _, done in batch:
                _settle(done, exc)
        else:
            for _, done in batch:
                _settle(done, None)

    async def _commit(self, requests: list[WriteRequest]) -> None:
        taken: set[ChannelKey] = set()

        async def work(cursor: Cursor) -> RowBatch:
            batch = RowBatch(self._cache, taken)
            await batch.write(cursor, requests)
            return batch

        while True:
            try:
                batch = await self._tables.transaction(work)
            except StreamsTaken as exc:
                taken |= exc.channels
            else:
                batch.update_cache()
                return


def _settle(done: "asyncio.Future[None]", error: BaseException | None) -> None:
    if done.done():  # its caller was cancelled
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
