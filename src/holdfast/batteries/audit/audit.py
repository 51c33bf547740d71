"""The audit: accepts rows without blocking the run and writes them in batches."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.batteries.audit.audit_rows import AuditKind, AuditQuery, AuditRow, AuditTable, replace_unstorable
from holdfast.clock import CLOCK, Clock
from holdfast.core.errors import format_error
from holdfast.core.log import describe_retry
from holdfast.core.observer import (
    AttemptControl,
    AttemptEnded,
    AttemptStarted,
    CallAnswered,
    CallEnded,
    CallInDoubt,
    ObservedEvent,
    Retried,
    StepEnded,
)
from holdfast.core.redaction import Redact, Redactor
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.waiting import describe_decision
from holdfast.db.tables import Tables
from holdfast.root_error import HoldfastError

log: logging.Logger = logging.getLogger("holdfast.audit")

#: Maximum number of rows in one write.
_MAX_BATCH = 1000

_RETRY_DELAY = timedelta(seconds=1)


class AuditError(HoldfastError):
    """The audit's settings are invalid.

    What to do: Correct the setting that the message names.
    """


class Audit:
    """Records every run, step and tool call. A run never waits for it. An `ObserverFactory`."""

    def __init__(
        self,
        *,
        tables: Tables | None = None,
        redact: Redact | None = None,
        capacity: int = 100_000,
        flush_interval: timedelta = timedelta(milliseconds=200),
        clock: Clock | None = None,
    ) -> None:
        """Create an audit.

        Args:
            tables: keep the rows. Default: in the store of the App, shared by all its processes.
            redact: removes secrets from arguments and errors. Default: values under names such as `password`.
            capacity: maximum number of unwritten rows. Above it the oldest rows are dropped and counted in the log.
            flush_interval: how long a row waits for others to be written in the same batch.

        Raises:
            AuditError: the capacity is not positive.
        """
        if capacity < 1:
            raise AuditError(f"capacity is {capacity}: give at least 1")
        self.tables = tables
        self._rows = AuditTable(tables)
        self._redact = redact or Redactor()
        self._flush_interval, self._clock = flush_interval, clock or CLOCK.get()
        self._pending: deque[AuditRow] = deque()
        self._capacity = capacity
        self._dropped = 0
        self._flush_task: asyncio.Task[None] | None = None
        #: The batch that is being written.
        self._write_task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def open(self, tables: Tables) -> None:
        """Open the rows: in `tables`, unless the audit was given others."""
        self._is_closed = False
        await self._rows.open(tables)

    def begin(self, attempt: AttemptControl) -> "AttemptAudit":
        """Record one attempt of a run."""
        return AttemptAudit(self, attempt, self._redact, self._clock)

    def put(self, row: AuditRow) -> None:
        """Queue a row to be written. Values that cannot be stored are replaced, and logged.

        After `close` a row is dropped and logged: it comes from a tool whose thread was abandoned.
        """
        if self._is_closed:
            log.warning("run %s: an audit row came after the audit was closed: %s", row.run_id, row.kind)
            return
        try:
            msgspec.json.encode(row)
        except Exception as exc:  # a lone surrogate, or any object that a host's redaction returns
            log.error("run %s: part of an audit row cannot be recorded: %s", row.run_id, exc)
            row = replace_unstorable(row)
        if len(self._pending) >= self._capacity:
            self._pending.popleft()
            self._dropped += 1
        self._pending.append(row)
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = asyncio.get_running_loop().create_task(self._flush_periodically())

    async def flush(self) -> None:
        """Write all queued rows. If the database raises, the rows that were not written stay queued."""
        async with self._lock:
            while self._write_task is not None or self._pending:
                if self._write_task is None:
                    self._write_task = asyncio.ensure_future(self._write_batch())
                write = self._write_task
                # A cancelled flush leaves the write running and the next flush waits for it: the database may still
                # commit the batch, so writing it again would duplicate its rows.
                await asyncio.wait([write])
                self._write_task = None
                write.result()
            if self._dropped:
                log.error("%d audit rows were dropped: the store was down and the queue was full", self._dropped)
                self._dropped = 0

    async def query(self, query: AuditQuery | None = None) -> list[AuditRow]:
        """Return the matching rows, oldest first, queued ones included."""
        await self.flush()
        return list(await self._rows.query(query or AuditQuery()))

    async def purge(self, older_than: timedelta) -> int:
        """Delete rows older than `older_than`. Returns their number."""
        return await self._rows.purge(self._clock.now() - older_than)

    async def export(self, query: AuditQuery | None = None) -> AsyncIterator[bytes]:
        """Yield the matching rows as JSON lines."""
        for row in await self.query(query):
            yield msgspec.json.encode(row) + b"\n"

    async def close(self) -> None:
        """Write all queued rows, then close the tables. May be called again."""
        self._is_closed = True
        if self._flush_task is not None:
            self._flush_task.cancel()
            await asyncio.gather(self._flush_task, return_exceptions=True)
            self._flush_task = None
        if self._pending:
            await self.flush()
        await self._rows.close()

    async def _flush_periodically(self) -> None:
        while self._pending:
            await self._clock.sleep(self._flush_interval)
            try:
                await self.flush()
            except Exception as exc:  # a store error must not fail a run: the rows stay queued
                log.warning("%d audit rows could not be written, will retry: %s", len(self._pending), exc)
                await self._clock.sleep(_RETRY_DELAY)

    async def _write_batch(self) -> None:
        batch = list(itertools.islice(self._pending, _MAX_BATCH))
        dropped_before = self._dropped
        await self._rows.add(batch)
        # `put` may have dropped rows during the write. They were the oldest, so they are part of this batch.
        for _ in range(len(batch) - (self._dropped - dropped_before)):
            self._pending.popleft()


class AttemptAudit:
    """Turns the events of one attempt into audit rows."""

    kinds: frozenset[type] = frozenset(
        {AttemptStarted, AttemptEnded, StepEnded, CallEnded, CallInDoubt, CallAnswered, Retried}
    )

    def __init__(self, audit: Audit, attempt: AttemptControl, redact: Redact, clock: Clock) -> None:
        self._audit, self._redact, self._clock = audit, redact, clock
        self._info, self._state, self._resumed = attempt.info, attempt.state, attempt.resumed

    def observe(self, event: ObservedEvent) -> None:
        match event:
            case AttemptStarted():
                self._record("start", status="resumed" if self._resumed else "begun")
            case StepEnded():
                self._record("step", self._state.own_usage, step=self._state.steps)
            case CallEnded(outcome="done" | "error"):
                self._record_call(event)
            case CallInDoubt():
                self._record_event("in doubt", f"{event.call.tool} {event.call.call_id}")
            case CallAnswered() if event.call.is_recorded:
                decision = describe_decision(event.decision)
                self._record_event("decision", f"{event.call.tool} ({event.call.call_id}) {decision}")
            case Retried():
                self._record_event("retry", describe_retry(event))
            case AttemptEnded():
                detail = "" if event.error is None else self._redact(format_error(event.error))
                failed = event.error is not None
                self._record("end", self._state.own_usage, status=event.end.value, failed=failed, detail=detail)

    def _record_call(self, event: CallEnded) -> None:
        self._record(
            "tool",
            name=event.call.tool,
            call_id=event.call.call_id,
            effect=event.effect.value,
            arguments=self._redact(event.call.arguments),
            failed=event.outcome == "error",
            took_seconds=event.took.total_seconds(),
        )

    def _record_event(self, name: str, detail: str) -> None:
        self._record("event", name=name, detail=self._redact(detail))

    def _record(self, kind: AuditKind, usage: Usage = NO_USAGE, **fields: Any) -> None:
        self._audit.put(
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
                **fields,
            )
        )
