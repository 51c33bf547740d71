"""Tables that code on any thread and any event loop may use, through the one event loop that has opened them."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.concurrency import THREADS, Thread
from holdfast.db.tables import Cursor, Schema, Tables, TablesError

_T = TypeVar("_T")


class SharedTables:
    """The tables of an adapter. Open them with `async with`, or with `with` for sync code.

    `async with` uses them on the current event loop, `with` on an event loop of its own, in a thread.
    """

    #: What its user calls it, in errors.
    label = "the database"

    def __init__(self, tables: Tables, schema: Schema) -> None:
        """Connect to nothing yet."""
        self._tables, self._schema = tables, schema
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    async def __aenter__(self) -> Self:
        self._refuse_open()
        await self._tables.open(self._schema)
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    def __enter__(self) -> Self:
        self._refuse_open()
        loop = asyncio.new_event_loop()
        thread = THREADS.get().start(loop.run_forever, name="holdfast-tables")
        try:
            asyncio.run_coroutine_threadsafe(self._tables.open(self._schema), loop).result()
        except BaseException:
            _stop_loop(loop, thread)
            raise
        self._loop, self._thread = loop, thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        finally:
            self._thread = None
            _stop_loop(loop, thread)

    async def _close(self) -> None:
        self._loop = None
        await self.drain()
        await self._tables.close()

    async def drain(self) -> None:
        """Finish the writes in progress."""

    async def read(self, work: Callable[[Cursor], Awaitable[_T]]) -> _T:
        """Run `work`, which only reads."""
        return await self.run(self._tables.read(work))

    async def transaction(self, work: Callable[[Cursor], Awaitable[_T]], *, lock: Iterable[str] = ()) -> _T:
        """Run `work` in a transaction, after those that hold one of the locks."""
        return await self.run(self._tables.transaction(work, lock=lock))

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the event loop of the tables, from any loop."""
        loop = self._require_loop(work)
        if loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def run_sync(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` on the event loop of the tables and wait for it, from any other thread.

        Raises:
            TablesError: called on the thread of that event loop, which would wait for itself.
        """
        loop = self._require_loop(work)
        if loop is _get_running_loop():
            work.close()
            raise TablesError(f"this thread runs the event loop of {self.label}: use async methods, such as ainvoke")
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def _require_loop(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            work.close()
            raise TablesError(f"{self.label} is not open: use it within `async with` or `with`")
        return self._loop

    def _refuse_open(self) -> None:
        if self._loop is not None:
            raise TablesError(f"{self.label} is open already")


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _stop_loop(loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
