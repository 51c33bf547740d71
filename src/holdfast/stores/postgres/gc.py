"""Deletes the journals of removed runs, one slice at a time."""

import asyncio
import logging

from holdfast.checkpoint.errors import StoreError, StorePermissionError
from holdfast.stores.postgres.database import ReaderPool, SqlFiles

log = logging.getLogger("holdfast.stores.postgres")

#: Rows deleted in one transaction. The pause after it is this many times as long as it took.
SLICE_ROWS, REST_FACTOR = 100, 2
#: How often to look whether another store has deleted the garbage that it works on.
_POLL_S = 0.02


class GarbageCollector:
    """Works beside the writer and pauses longer than it works, so that no save waits for it.

    Garbage it leaves is deleted by another store, or by the next one that opens.
    """

    def __init__(self, readers: ReaderPool, sql: SqlFiles) -> None:
        self._readers = readers
        self._sweep_sql = sql.with_schema("select holdfast.sweep($1::bigint)")
        self._newest_sql = sql.with_schema("select max(id) from holdfast.garbage")
        self._is_left_sql = sql.with_schema("select exists (select from holdfast.garbage where id <= $1::bigint)")
        self._dirty = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="holdfast-postgres-gc")

    def wake(self) -> None:
        """Look for garbage soon."""
        self._dirty.set()

    async def sweep_all(self) -> None:
        """Return when all that is garbage now is deleted, by this store or another."""
        [(newest,)] = await self._readers.execute(self._newest_sql)
        while newest is not None:
            swept = await self._sweep()
            [(is_left,)] = await self._readers.execute(self._is_left_sql, [newest])
            if not is_left:
                return
            if not swept:
                await asyncio.sleep(_POLL_S)  # another store deletes the rest

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                started = loop.time()
                while await self._sweep():
                    await asyncio.sleep(REST_FACTOR * (loop.time() - started))
                    started = loop.time()
            except StorePermissionError:
                pass  # a role that only reads leaves it to others
            except StoreError as exc:
                log.warning("journals of removed runs could not be deleted, will retry later: %s", exc)

    async def _sweep(self) -> int:
        """Delete one slice and return its size."""
        [(swept,)] = await self._readers.execute(self._sweep_sql, [SLICE_ROWS])
        count: int = swept
        return count
