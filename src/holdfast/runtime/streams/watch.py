"""Status changes of many runs."""

import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.checkpoint.errors import RunNotFound, StoreClosed, StoreError
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.clock import Clock
from holdfast.core.run.run_events import StatusChanged
from holdfast.runtime.changes import ChangeSignal

log = logging.getLogger("holdfast.events")

#: The pause between two reads, however often the store changes.
_MIN_INTERVAL = timedelta(milliseconds=200)

_BEFORE_ALL_RUNS = datetime(1970, 1, 1, tzinfo=UTC)
_UNFINISHED = frozenset(RunStatus) - TERMINAL_STATUSES - {RunStatus.REMOVED}


class StatusWatch:
    """Compares the records of the runs that match a filter with those of the last read."""

    def __init__(self, store: RunStore, run_filter: RunFilter) -> None:
        """Watch runs. The statuses of the filter are ignored: each change counts."""
        self._store = store
        self._filter = msgspec.structs.replace(run_filter, statuses=None)
        #: The status of each run that is not terminal, by id.
        self._known: dict[str, StatusChanged] = {}
        #: When the newest run was created, and the runs of that time. `None` before the first look.
        self._newest: datetime | None = None
        self._newest_ids: set[str] = set()

    async def look(self) -> list[StatusChanged]:
        """Return the changes since the last look. The first time: the status of each run that is not terminal."""
        newest = self._newest
        if newest is None:
            newest = await self._find_newest()
        found = await self._list(statuses=_UNFINISHED)
        # A run may have begun and ended since the last look.
        later = await self._list(created_after=newest)
        found |= {run_id: record for run_id, record in later.items() if run_id not in self._newest_ids}
        for run_id in self._known.keys() - found.keys():
            try:
                found[run_id] = await get_record(self._store, run_id)
            except RunNotFound:
                self._known.pop(run_id)
                found.pop(run_id, None)
        return [event for record in found.values() if (event := self._compare(record)) is not None]

    async def _find_newest(self) -> datetime:
        page = await self._store.list_page(self._filter, limit=1)
        for record in page.records:
            self._note_newest(record)
        self._newest = self._newest or _BEFORE_ALL_RUNS
        return self._newest

    async def _list(
        self, *, statuses: frozenset[RunStatus] | None = None, created_after: datetime | None = None
    ) -> dict[str, RunRecord]:
        since = max((each for each in (created_after, self._filter.created_after) if each is not None), default=None)
        wanted = msgspec.structs.replace(self._filter, statuses=statuses, created_after=since)
        return {record.run_id: record async for record in iter_runs(self._store, wanted)}

    def _compare(self, record: RunRecord) -> StatusChanged | None:
        self._note_newest(record)
        event = StatusChanged(run_id=record.run_id, status=record.current_status.value, reason=record.reason)
        if self._known.get(record.run_id) == event:
            return None
        if record.is_terminal:
            self._known.pop(record.run_id, None)
        else:
            self._known[record.run_id] = event
        return event

    def _note_newest(self, record: RunRecord) -> None:
        if self._newest is None or record.created_at > self._newest:
            self._newest, self._newest_ids = record.created_at, set()
        if record.created_at == self._newest:
            self._newest_ids.add(record.run_id)


async def watch_statuses(
    store: RunStore,
    changes: ChangeSignal,
    clock: Clock,
    run_filter: RunFilter,
    wanted: frozenset[RunStatus] | None,
) -> AsyncGenerator[StatusChanged, None]:
    """Yield the status of each run that is not terminal, then each change, until the store is closed.

    A watcher that is slow gets the current status of a run, not each change in between.

    Args:
        wanted: only changes to these statuses.
    """
    watch = StatusWatch(store, run_filter)
    with changes.listen() as changed:
        while True:
            try:
                events = await watch.look()
            except StoreClosed:
                raise
            except StoreError as exc:
                log.info("a watcher waits for the store: %s", exc)
                events = []
            for event in events:
                if wanted is None or event.status in wanted:
                    yield event
            await clock.sleep(_MIN_INTERVAL)
            await changed.wait()
