"""The fleet: workers and the runs they hold, the queue, and what happened in the last day."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.claim import this_process
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore, SupportsFleetView
from holdfast.core.errors import DefinitionError
from holdfast.runtime.reading import RunSummary, summarize_run
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
    workers = await _read_workers(store, active) if principal.sees_all else None
    return Fleet(
        workers=_group_by_worker(active) if workers is None else workers,
        has_all_workers=workers is not None,
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
        found += [record for record in page.records if principal.can_see(record.run_id, record.caller_id)]
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


async def _read_workers(store: CheckpointStore, active: Sequence[RunRecord]) -> list[WorkerRow] | None:
    """Return all workers, also those without runs. `None` if the store does not list them."""
    if not isinstance(store, SupportsFleetView):
        return None
    try:
        heartbeats = await store.list_workers()
    except DefinitionError:  # it wraps a store that does not
        return None
    by_id = {row.worker_id: row for row in _group_by_worker(active)}
    own = this_process()
    for each in heartbeats:
        worker_id, process = each.worker.worker_id, each.worker.process
        held = by_id.get(worker_id)
        by_id[worker_id] = WorkerRow(
            worker_id=worker_id,
            alive=each.alive,
            runs=() if held is None else held.runs,
            process=f"{process.host.partition('/')[0]} · {process.pid}",
            last_heartbeat=each.last_at,
            is_own=process == own,
        )
    # The busy ones first.
    return sorted(by_id.values(), key=lambda row: (not row.alive, -len(row.runs), row.worker_id))


def _group_by_worker(records: Sequence[RunRecord]) -> list[WorkerRow]:
    held: dict[str, list[RunRecord]] = {}
    for record in records:
        held.setdefault(record.owner or "", []).append(record)
    return [
        WorkerRow(
            worker_id=worker_id,
            alive=any(record.owner_alive for record in runs),
            runs=[summarize_run(record) for record in runs],
        )
        for worker_id, runs in sorted(held.items())
    ]


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
