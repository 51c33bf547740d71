"""The database of a saver, and the event loop that uses it: the caller's, or one on a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self, TypeVar

from holdfast.adapters.langgraph.saver.requests import WriteRequest
from holdfast.adapters.langgraph.saver.schema import make_schema
from holdfast.adapters.langgraph.saver.values import ChannelKey, ListCache, ListIndex
from holdfast.adapters.langgraph.saver.writer import GroupWriter
from holdfast.db.tables import Cursor, Schema, Tables, TablesError
from holdfast.db.urls import POSTGRES_SCHEMES, tables_from_url

_T = TypeVar("_T")


class SaverDatabase:
    """Used by a saver and its copies with another serializer. Safe to share between threads and event loops."""

    def __init__(self, tables: Tables, schema: Schema) -> None:
        """Connect to nothing yet."""
        self._tables, self._schema = tables, schema
        self._cache = ListCache()
        self._writer = GroupWriter(self._tables, self._cache)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Connect to nothing yet. Raises `TablesError` if the URL names no database."""
        return cls(tables_from_url(url), make_schema(postgres=url.partition(":")[0] in POSTGRES_SCHEMES))

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Create or migrate the tables. This event loop uses them until `close`."""
        self._refuse_open()
        await self._tables.open(self._schema)
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Finish the writes under way, then disconnect."""
        self._loop = None
        await self._writer.drain()
        await self._tables.close()

    def open_in_thread(self) -> None:
        """Create or migrate the tables. An event loop on a thread of its own uses them until `close_thread`."""
        self._refuse_open()
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="holdfast-langgraph", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._tables.open(self._schema), loop).result()
        except BaseException:
            _stop_loop(loop, thread)
            raise
        self._loop, self._thread = loop, thread

    def close_thread(self) -> None:
        """Finish the writes under way, disconnect, and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self.close(), loop).result()
        finally:
            self._thread = None
            _stop_loop(loop, thread)

    # -- calls --------------------------------------------------------------------------------------------------

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the saver's event loop, from any loop."""
        loop = self._require_loop(work)
        if loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def run_sync(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the saver's event loop and wait for it, from any other thread.

        Raises:
            TablesError: called on the thread of that event loop, which would wait for itself.
        """
        loop = self._require_loop(work)
        if loop is _get_running_loop():
            work.close()
            raise TablesError("this thread runs the saver's event loop: use the graph's async methods, such as ainvoke")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    async def write(self, request: WriteRequest) -> None:
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

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads."""
        return await self._tables.read(work)

    def _require_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            work.close()
            raise TablesError("the saver is not open: use it within `async with` or `with`")
        return self._loop

    def _refuse_open(self) -> None:
        if self._loop is not None:
            raise TablesError("the saver is open already")


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
