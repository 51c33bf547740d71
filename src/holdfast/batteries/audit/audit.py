"""The audit: takes rows at once, writes them in batches off the hot path."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec

from holdfast.batteries.audit.errors import AuditError
from holdfast.batteries.audit.recorder import RunRecorder
from holdfast.batteries.audit.rows import AuditQuery, AuditRow, without_unstorable
from holdfast.batteries.audit.store import AuditStore, MemoryAudit
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.info import RunInfo
from holdfast.run.ports import Recorder
from holdfast.run.redaction import Redact, Redactor
from holdfast.run.state import RunState

log = logging.getLogger("holdfast.audit")

#: Rows that are written together at most.
_BATCH = 1000


class Audit:
    """Records every run, step and tool call. A run never waits for it."""

    def __init__(
        self,
        store: AuditStore | None = None,
        *,
        redact: Redact | None = None,
        capacity: int = 100_000,
        every: timedelta = timedelta(milliseconds=200),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make an audit.

        Args:
            store: keeps the rows; without one in memory, for this process alone.
            redact: takes secrets out of arguments and errors. Without it values under names such as `password`.
            capacity: rows that may wait to be written. When the store is down for longer, the oldest are dropped, and
                counted in the log.
            every: how long rows wait for others to be written with them.

        Raises:
            AuditError: the capacity is not positive.
        """
        if capacity < 1:
            raise AuditError(f"capacity is {capacity}: give at least 1")
        self._store = store or MemoryAudit()
        self._redact = redact or Redactor()
        self._every, self._clock = every, clock
        self._waiting: deque[AuditRow] = deque()
        self._capacity = capacity
        self._dropped = 0
        self._writing: asyncio.Task[None] | None = None
        #: A batch that is being written.
        self._adding: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._open = False

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """The recorder of one run."""
        return RunRecorder(info, self._redact, self._clock, self.put)

    def put(self, row: AuditRow) -> None:
        """Take a row; it is written soon. Returns at once. What no store could keep is left out of it, and logged."""
        try:
            msgspec.json.encode(row)
        except Exception as exc:  # half a surrogate pair, or whatever a host's redaction has returned
            log.error("run %s: a part of what happened cannot be recorded: %s", row.run_id, exc)
            row = without_unstorable(row)
        if len(self._waiting) >= self._capacity:
            self._waiting.popleft()
            self._dropped += 1
        self._waiting.append(row)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_soon())

    async def _write_soon(self) -> None:
        while self._waiting:
            await self._clock.sleep(self._every)
            try:
                await self.flush()
            except Exception as exc:  # the store's trouble is not the run's; what waits is written later
                log.warning("%d audit rows could not be written, will try again: %s", len(self._waiting), exc)
                await self._clock.sleep(timedelta(seconds=1))

    async def flush(self) -> None:
        """Write everything that waits. Raises what the store raises; what was not written still waits."""
        async with self._lock:
            await self._ready()
            while self._adding is not None or self._waiting:
                if self._adding is None:
                    self._adding = asyncio.ensure_future(self._add())
                adding = self._adding
                # Whoever is cancelled here leaves it under way, and the next one waits for it: a database may still
                # commit what nobody waits for any more, and must not get it twice.
                await asyncio.wait([adding])
                self._adding = None
                adding.result()
            if self._dropped:
                log.error("%d audit rows were dropped: the store was down for longer than they fit", self._dropped)
                self._dropped = 0

    async def _add(self) -> None:
        batch = [self._waiting[place] for place in range(min(_BATCH, len(self._waiting)))]
        dropped = self._dropped
        await self._store.add(batch)
        # Rows that were dropped meanwhile were the oldest, so they are among those just written.
        for _ in range(max(0, len(batch) - (self._dropped - dropped))):
            self._waiting.popleft()

    async def query(self, wanted: AuditQuery | None = None) -> list[AuditRow]:
        """The rows that fit, oldest first, those that wait included."""
        await self.flush()
        return list(await self._store.query(wanted or AuditQuery()))

    async def purge(self, keep: timedelta) -> int:
        """Drop rows older than `keep`. Returns how many."""
        await self._ready()
        return await self._store.purge(self._clock.now() - keep)

    async def export(self, wanted: AuditQuery | None = None) -> AsyncIterator[bytes]:
        """The rows that fit as JSON lines."""
        for row in await self.query(wanted):
            yield msgspec.json.encode(row) + b"\n"

    async def close(self) -> None:
        """Write everything that waits, then let go of the store. May be called again."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
            self._writing = None
        if self._waiting or self._adding is not None:
            await self.flush()
        if self._open:
            self._open = False
            await self._store.close()

    async def _ready(self) -> None:
        if not self._open:
            await self._store.open()
            self._open = True
