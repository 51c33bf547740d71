"""Deletes, bit by bit, the journals of runs that are gone."""

import asyncio
import logging

from holdfast.checkpoint.errors import StoreError
from holdfast.stores.postgres.connection import BIGINT, decode_int, encode_bigint
from holdfast.stores.postgres.database import ReaderPool, SqlFiles

log = logging.getLogger("holdfast.stores.postgres")

#: Entries deleted in one transaction, and how much longer than a slice takes is the rest after it.
SLICE_ROWS, REST_FACTOR = 100, 2


class GarbageCollector:
    """Works beside the writer and rests longer than it works, so that no save waits for it.

    What it does not get done, another store or the next to be opened does.
    """

    def __init__(self, readers: ReaderPool, sql: SqlFiles) -> None:
        self._readers = readers
        self._statement = sql.with_schema("select holdfast.sweep($1)").encode()
        self._dirty = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name="holdfast-postgres-gc")

    def wake(self) -> None:
        """There may be something to sweep up."""
        self._dirty.set()

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
            except StoreError as exc:
                log.warning("journals of removed runs are left to be swept up later: %s", exc)

    async def _sweep(self) -> int:
        """Delete a slice. How many were deleted."""
        return decode_int(
            (await self._readers.call(self._statement, [BIGINT], [encode_bigint(SLICE_ROWS)])).get_value(0, 0)
        )
