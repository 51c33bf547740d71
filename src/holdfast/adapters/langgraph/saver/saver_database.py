"""The database of a saver, and its group commit."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Self, TypeVar

from holdfast.adapters.langgraph.saver.row_batch import PutRequest, RowBatch, StreamsTaken
from holdfast.adapters.langgraph.saver.saver_schema import make_schema
from holdfast.adapters.langgraph.saver.values import ChannelKey, ListCache, ListIndex
from holdfast.adapters.shared_tables import SharedTables
from holdfast.db.tables import Cursor, Schema, Tables, TablesUnavailable
from holdfast.db.urls import POSTGRES_SCHEMES, tables_from_url

#: Bounds the time that a commit takes.
_MAX_BATCH = 1_000


class GroupWriter:
    """Commits one batch after the other. What arrives meanwhile is the next batch."""

    def __init__(self, tables: Tables, cache: ListCache) -> None:
        self._tables, self._cache = tables, cache
        self._waiting: list[tuple[PutRequest, asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def write(self, request: PutRequest) -> None:
        """Return when the request is committed. It is written even if the caller is cancelled.

        Raises:
            TablesError: nothing of it was written.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((request, done))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        await done

    async def drain(self) -> None:
        """Wait until every request is written."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_MAX_BATCH], self._waiting[_MAX_BATCH:]
                await self._commit_batch(batch)
        finally:
            self._running = None

    async def _commit_batch(self, batch: list[tuple[PutRequest, "asyncio.Future[None]"]]) -> None:
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

    async def _commit(self, requests: list[PutRequest]) -> None:
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


_T = TypeVar("_T")


class SaverDatabase(SharedTables):
    """Used by a saver and its copies with another serializer. Safe to share between threads and event loops."""

    label = "the saver"

    def __init__(self, tables: Tables, schema: Schema) -> None:
        """Connect to nothing yet."""
        super().__init__(tables, schema)
        self._cache = ListCache()
        self._writer = GroupWriter(self._tables, self._cache)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Connect to nothing yet. Raises `TablesError` if the URL names no database."""
        return cls(tables_from_url(url), make_schema(postgres=url.partition(":")[0] in POSTGRES_SCHEMES))

    async def drain(self) -> None:
        """Finish the writes in progress."""
        await self._writer.drain()

    async def write(self, request: PutRequest) -> None:
        """Return when the request is committed."""
        await self._writer.write(request)

    async def change(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work` in a transaction of its own, after the writes that wait."""
        await self._writer.drain()
        return await self._tables.transaction(work)

    def remember(self, indexes: Mapping[ChannelKey, ListIndex]) -> None:
        """Remember where the items of lists are that were read."""
        for key, index in indexes.items():
            known = self._cache.get(key)
            if known is None or known.version != index.version:
                self._cache.put(key, index)
