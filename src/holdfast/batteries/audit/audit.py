"""What can go wrong with an audit.

The recorder of one run.

The audit: takes rows at once, writes them in batches off the hot path.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.batteries.audit.store import AuditKind, AuditQuery, AuditRow, AuditStore, MemoryAudit, replace_unstorable
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import format_error
from holdfast.core.info import RunInfo
from holdfast.core.message import NO_USAGE, Usage
from holdfast.core.ports import Recorder
from holdfast.core.redaction import Redact, Redactor
from holdfast.core.state import RunState
from holdfast.core.tool_context import ToolContext
from holdfast.errors import HoldfastError


class AuditError(HoldfastError):
    """The audit was put together in a way that cannot work."""


class RunRecorder:
    """Turns what happens in one run into rows. Returns at once."""

    def __init__(self, info: RunInfo, redact: Redact, clock: Clock, put: Callable[[AuditRow], None]) -> None:
        self._info, self._redact, self._clock, self._put = info, redact, clock, put

    def start(self, *, resumed: bool) -> None:
        """The run begins, or goes on."""
        self._record("start", status="resumed" if resumed else "begun")

    def step(self, step: int, usage: Usage) -> None:
        """A step is finished."""
        self._record("step", usage, iteration=step)

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        """A tool call was made."""
        self._record(
            "tool",
            name=call.tool,
            call_id=call.call_id,
            effect=effect,
            arguments=self._redact(call.arguments),
            failed=error,
            took_seconds=took.total_seconds(),
        )

    def event(self, name: str, detail: str) -> None:
        """Something else worth knowing."""
        self._record("event", name=name, detail=self._redact(detail))

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        """The run is over, or left."""
        detail = "" if error is None else self._redact(format_error(error))
        self._record("end", usage, status=status, failed=error is not None, detail=detail)

    def _record(self, kind: AuditKind, usage: Usage = NO_USAGE, **more: Any) -> None:
        self._put(
            AuditRow(
                at=self._clock.now(),
                kind=kind,
                run_id=self._info.run_id,
                agent_name=self._info.agent_name,
                caller_id=self._info.caller_id,
                parent_run_id=self._info.parent_run_id,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cost_usd=usage.cost_usd,
                **more,
            )
        )


log = logging.getLogger("holdfast.audit")

#: Rows that are written together at most.
_MAX_BATCH = 1000


class Audit:
    """Records every run, step and tool call. A run never waits for it."""

    def __init__(
        self,
        store: AuditStore | None = None,
        *,
        redact: Redact | None = None,
        capacity: int = 100_000,
        flush_interval: timedelta = timedelta(milliseconds=200),
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
        self._flush_interval, self._clock = flush_interval, clock
        self._pending: deque[AuditRow] = deque()
        self._capacity = capacity
        self._dropped = 0
        self._flush_task: asyncio.Task[None] | None = None
        #: A batch that is being written.
        self._write_task: asyncio.Task[None] | None = None
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
            row = replace_unstorable(row)
        if len(self._pending) >= self._capacity:
            self._pending.popleft()
            self._dropped += 1
        self._pending.append(row)
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = asyncio.get_running_loop().create_task(self._flush_periodically())

    async def _flush_periodically(self) -> None:
        while self._pending:
            await self._clock.sleep(self._flush_interval)
            try:
                await self.flush()
            except Exception as exc:  # the store's trouble is not the run's; what waits is written later
                log.warning("%d audit rows could not be written, will try again: %s", len(self._pending), exc)
                await self._clock.sleep(timedelta(seconds=1))

    async def flush(self) -> None:
        """Write everything that waits. Raises what the store raises; what was not written still waits."""
        async with self._lock:
            await self._ensure_open()
            while self._write_task is not None or self._pending:
                if self._write_task is None:
                    self._write_task = asyncio.ensure_future(self._write_batch())
                adding = self._write_task
                # Whoever is cancelled here leaves it under way, and the next one waits for it: a database may still
                # commit what nobody waits for any more, and must not get it twice.
                await asyncio.wait([adding])
                self._write_task = None
                adding.result()
            if self._dropped:
                log.error("%d audit rows were dropped: the store was down for longer than they fit", self._dropped)
                self._dropped = 0

    async def _write_batch(self) -> None:
        batch = [self._pending[place] for place in range(min(_MAX_BATCH, len(self._pending)))]
        dropped = self._dropped
        await self._store.add(batch)
        # Rows that were dropped meanwhile were the oldest, so they are among those just written.
        for _ in range(max(0, len(batch) - (self._dropped - dropped))):
            self._pending.popleft()

    async def query(self, query: AuditQuery | None = None) -> list[AuditRow]:
        """The rows that fit, oldest first, those that wait included."""
        await self.flush()
        return list(await self._store.query(query or AuditQuery()))

    async def purge(self, older_than: timedelta) -> int:
        """Drop rows older than `keep`. Returns how many."""
        await self._ensure_open()
        return await self._store.purge(self._clock.now() - older_than)

    async def export(self, query: AuditQuery | None = None) -> AsyncIterator[bytes]:
        """The rows that fit as JSON lines."""
        for row in await self.query(query):
            yield msgspec.json.encode(row) + b"\n"

    async def close(self) -> None:
        """Write everything that waits, then let go of the store. May be called again."""
        if self._flush_task is not None:
            self._flush_task.cancel()
            await asyncio.gather(self._flush_task, return_exceptions=True)
            self._flush_task = None
        if self._pending or self._write_task is not None:
            await self.flush()
        if self._open:
            self._open = False
            await self._store.close()

    async def _ensure_open(self) -> None:
        if not self._open:
            await self._store.open()
            self._open = True
