"""The fleet: workers and the runs they hold, the queue, and what happened in the last day."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.claim import this_process
from holdfast.checkpoint.fleet import list_workers
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.activity import WorkerRuns, join_workers
from holdfast.runtime.reading import RunSummary, is_listed, summarize_run
from holdfast.web.auth import Principal
from holdfast.web.ui.views.listing import StatusCounts, count_all

_PAGE = 500
#: Records that each part of the view reads at most.
_MAX_RECORDS = 1_000
_HOURS = 24
#: Queued and interrupted runs are counted up to this many.
_MAX_DEPTH = 100_000
_UNOWNED = frozenset({RunStatus.QUEUED, RunStatus.INTERRUPTED})


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and what it holds."""

    worker_id: str
    alive: bool
    runs: Sequence[RunSummary]
    #: Its host and process, and its last heartbeat. `None` if only its runs are known.
    process: str | None = None
    last_heartbeat: datetime | None = None
    #: The process that serves the page.
    is_own: bool = False


class Hour(msgspec.Struct, kw_only=True):
    """The runs created within one hour."""

    start: datetime
    created: int = 0
    failed: int = 0
    cost_usd: float = 0.0


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at one moment."""

    workers: Sequence[WorkerRow]
    #: Workers that hold no run are among them.
    has_all_workers: bool
    #: By status, for `queued` and `interrupted`.
    depth: StatusCounts
    #: Of the runs that wait for a worker and are due.
    oldest: RunSummary | None
    hours: Sequence[Hour]
    #: There are more runs than were read.
    is_partial: bool


async def read_fleet(store: CheckpointStore, principal: Principal, now: datetime) -> Fleet:
    """Read the fleet, as far as it is visible to the principal."""
    active, _ = await _list(store, principal, RunFilter(statuses=frozenset({RunStatus.RUNNING})))
    start = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=_HOURS - 1)
    recent, is_partial = await _list(store, principal, RunFilter(created_after=start))
    depth = await count_all(store, _MAX_DEPTH) if principal.sees_all else None
    heartbeats = await list_workers(store) if principal.sees_all else None
    return Fleet(
        workers=[_make_row(worker) for worker in join_workers(heartbeats or (), active)],
        has_all_workers=heartbeats is not None,
        depth=depth or await _count_unowned(store, principal),
        oldest=await _find_oldest(store, principal, now),
        hours=_group_by_hour(recent, start),
        is_partial=is_partial,
    )


async def _list(store: CheckpointStore, principal: Principal, filter: RunFilter) -> tuple[list[RunRecord], bool]:
    filter = _restrict(filter, principal)
    found: list[RunRecord] = []
    cursor: str | None = None
    while len(found) < _MAX_RECORDS:
        page = await store.list_page(filter, limit=_PAGE, cursor=cursor)
        listed = [record for record in page.records if is_listed(record, filter)]
        found += [record for record in listed if principal.can_see(record.run_id, record.caller_id)]
        cursor = page.cursor
        if cursor is None:
            return found, False
    return found, True


async def _count_unowned(store: CheckpointStore, principal: Principal) -> StatusCounts:
    records, is_partial = await _list(store, principal, RunFilter(statuses=_UNOWNED))
    counts = Counter(record.status.value for record in records)
    return StatusCounts(counts=counts, more=frozenset(status.value for status in _UNOWNED if is_partial))


async def _find_oldest(store: CheckpointStore, principal: Principal, now: datetime) -> RunSummary | None:
    """Return the oldest run that is due and waits for a worker."""
    seen = 0
    async for record in store.list_runs(_restrict(RunFilter(statuses=_UNOWNED), principal)):
        seen += 1
        if record.not_before <= now and principal.can_see(record.run_id, record.caller_id):
            return summarize_run(record)
        if seen >= _MAX_RECORDS:  # all of them are delayed
            break
    return None


def _restrict(filter: RunFilter, principal: Principal) -> RunFilter:
    if principal.sees_all or principal.run_id is not None:
        return filter
    return msgspec.structs.replace(filter, caller_id=principal.caller_id)


def _make_row(worker: WorkerRuns) -> WorkerRow:
    process = None if worker.heartbeat is None else worker.heartbeat.worker.process
    return WorkerRow(
        worker_id=worker.worker_id,
        alive=worker.alive,
        runs=[summarize_run(record) for record in worker.runs],
        process=None if process is None else f"{process.host.partition('/')[0]} · {process.pid}",
        last_heartbeat=None if worker.heartbeat is None else worker.heartbeat.last_at,
        is_own=process == this_process(),
    )


def _group_by_hour(records: Sequence[RunRecord], start: datetime) -> list[Hour]:
    hours = [Hour(start=start + timedelta(hours=number)) for number in range(_HOURS)]
    for record in records:
        number = (record.created_at - start) // timedelta(hours=1)
        if 0 <= number < _HOURS:
            hour = hours[number]
            hour.created += 1
            hour.failed += record.status in (RunStatus.FAILED, RunStatus.PARKED)
            hour.cost_usd += summarize_run(record).usage.cost_usd
    return hours
