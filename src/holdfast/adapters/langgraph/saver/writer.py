"""Group commit: the writes that wait are committed together."""

import asyncio
from collections.abc import Collection, Iterable

from holdfast.adapters.langgraph.saver.requests import WriteRequest
from holdfast.adapters.langgraph.saver.schema import CHECKPOINT, ITEM, VALUE, WRITE, Row, insert_rows, select_in
from holdfast.adapters.langgraph.saver.values import (
    LIST,
    ChannelKey,
    EncodedList,
    ListCache,
    ListIndex,
    ListPlan,
    plan_list,
)
from holdfast.db.tables import Cursor, Tables, TablesError, TablesUnavailable

#: Bounds the time that a commit takes.
_MAX_BATCH = 1_000


class _StreamsTaken(Exception):
    """Another process has continued the streams of these channels. Nothing was written."""

    def __init__(self, channels: set[ChannelKey]) -> None:
        super().__init__(channels)
        self.channels = channels


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
        except TablesError as exc:
            if len(batch) == 1 or isinstance(exc, TablesUnavailable):
                for _, done in batch:
                    _settle(done, exc)
                return
            for each in batch:  # one of them is refused: the others do not fail with it
                await self._commit_batch([each])
        except BaseException as exc:
            for _, done in batch:
                _settle(done, exc)
            raise
        else:
            for _, done in batch:
                _settle(done, None)

    async def _commit(self, requests: list[WriteRequest]) -> None:
        taken: set[ChannelKey] = set()

        async def work(cursor: Cursor) -> _Batch:
            batch = _Batch(self._cache, taken)
            await batch.write(cursor, requests)
            return batch

        while True:
            try:
                batch = await self._tables.transaction(work)
            except _StreamsTaken as exc:
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


class _Batch:
    """One attempt to write some requests. The cache changes only after the commit."""

    def __init__(self, cache: ListCache, taken: Collection[ChannelKey]) -> None:
        self._cache, self._taken = cache, taken
        self._indexes: dict[ChannelKey, ListIndex | None] = {}
        self._values: dict[Row, Row] = {}
        self._items: dict[Row, Row] = {}

    async def write(self, cursor: Cursor, requests: Iterable[WriteRequest]) -> None:
        await self._forget_removed_lists(cursor, requests)
        replacing: dict[str, dict[Row, Row]] = {CHECKPOINT: {}, WRITE: {}}
        adding: dict[Row, Row] = {}
        for request in requests:
            self._add_values(request)
            for (table, key), others in request.replacing.items():
                replacing[table][key] = others
            for (_, key), others in request.adding.items():
                adding.setdefault(key, others)
        if self._items:
            written = await insert_rows(cursor, ITEM, self._items, replace=False)
            if lost := self._items.keys() - written:
                raise _StreamsTaken({(thread_id, ns, channel) for thread_id, ns, channel, *_ in lost})
        for table, rows in ((VALUE, self._values), *replacing.items()):
            if rows:
                await insert_rows(cursor, table, rows, replace=True)
        if adding:
            await insert_rows(cursor, WRITE, adding, replace=False)

    def update_cache(self) -> None:
        for key, index in self._indexes.items():
            if index is None:
                self._cache.discard(key)
            else:
                self._cache.put(key, index)

    async def _forget_removed_lists(self, cursor: Cursor, requests: Iterable[WriteRequest]) -> None:
        """Do not refer to items of a list that another process has deleted."""
        known: dict[Row, ChannelKey] = {}
        for request in requests:
            for (channel, _), value in request.values.items():
                key = (request.thread_id, request.ns, channel)
                if isinstance(value, EncodedList) and (index := self._cache.get(key)) is not None:
                    known[*key, index.version] = key
        columns = ("thread_id", "ns", "channel", "version")
        select = f"SELECT {', '.join(columns)} FROM {VALUE} WHERE type = '{LIST}'"
        found = {tuple(row) for row in await select_in(cursor, select, (), columns, [*known])}
        self._indexes.update((key, None) for row, key in known.items() if row not in found)

    def _add_values(self, request: WriteRequest) -> None:
        for (channel, version), value in request.values.items():
            key = (request.thread_id, request.ns, channel)
            if isinstance(value, EncodedList):
                type_, body = value.to_inline() if value.is_small() else self._add_list(key, version, value)
            else:
                type_, body = value
            self._values[*key, version] = (type_, body)

    def _add_list(self, key: ChannelKey, version: str, value: EncodedList) -> tuple[str, bytes]:
        index = self._indexes[key] if key in self._indexes else self._cache.get(key)
        plan: ListPlan = plan_list(value, version, index, new_stream=key in self._taken)
        self._indexes[key] = plan.index
        self._items.update(((*key, *place), item) for place, item in plan.new_items.items())
        return LIST, plan.body
