"""Gives the batteries of an App their tables."""

import logging
from collections.abc import Iterable
from datetime import timedelta

from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock
from holdfast.concurrency import close_with_timeout, run_with_timeout
from holdfast.db.tables import Tables, TablesUnavailable, UsesTables

log: logging.Logger = logging.getLogger("holdfast.app")

#: The time that a database has to answer when the App opens. Later the battery retries when it is used.
_OPEN_TIMEOUT = timedelta(seconds=5)


class TableUsers:
    """The batteries of one App that keep rows: in its store, unless the user named another place."""

    def __init__(self, parts: Iterable[object], store: RunStore | None, clock: Clock) -> None:
        self._batteries = [part for part in parts if isinstance(part, UsesTables)]
        self._store, self._clock = store, clock
        #: For an App without a store.
        self._memory: Tables | None = None

    async def open(self) -> None:
        """Open the batteries, one after the other.

        Raises:
            TablesError: the tables cannot be used, or a newer holdfast made them. All batteries are closed.
        """
        try:
            for battery in self._batteries:
                await self._open(battery)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the batteries, in reverse. An error is logged."""
        for battery in reversed(self._batteries):
            await close_with_timeout(type(battery).__name__, battery.close, self._clock)

    async def _open(self, battery: UsesTables) -> None:
        name, tables = type(battery).__name__, battery.tables or self._get_tables()
        if not tables.durable and battery.tables is None:
            # A host's own table holds checkpoints and nothing else.
            level = logging.WARNING if self._store is not None and self._store.durable else logging.INFO
            log.log(level, "%s keeps its rows in memory: they do not survive this process", name)
        try:
            if not await run_with_timeout(_OPEN_TIMEOUT, battery.open(tables), self._clock):
                log.warning("the tables of %s do not answer, will retry when they are used", name)
        except TablesUnavailable as exc:
            log.warning("the tables of %s cannot be opened, will retry when they are used: %s", name, exc)

    def _get_tables(self) -> Tables:
        if self._store is not None:
            return self._store.tables()
        if self._memory is None:
            from holdfast.db.sqlite_tables import MemoryTables  # an App without a store needs no SQLite

            self._memory = MemoryTables()
        return self._memory
