"""The fleet: workers and the runs they hold, the queue, and what happened in the last day."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.reading import RunSummary, summarize_run
from holdfast.web.auth import Principal

_PAGE = 500
#: Records that each part of the view reads at most.
_MAX_RECORDS = 1_000
_HOURS = 24


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and what it holds."""

    worker_id: str
    alive: bool
    runs: Sequence[RunSummary]
    #: The latest write of one of its runs.
    last_write: datetime


class Hour(msgspec.Struct, kw_only=True):
    """The runs created within one hour."""

    start: datetime
    created: int = 0
    failed: int = 0
    cost_usd: float = 0.0


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at one moment."""

    workers: Sequence[WorkerRow]
    queued: int
    interrupted: int
    #: More wait for a worker than were counted.
    more_unowned: bool
    #: Of the runs that wait for a worker and are due.
    oldest: RunSummary | None
    hours: Sequence[Hour]
    #: There are more runs than were read.
    is_partial: bool


async def read_fleet(store: CheckpointStore, principal: Principal, now: datetime) -> Fleet:
    """Read the fleet, as far as it is visible to the principal."""
    active, _ = await _list(store, principal, RunFilter(statuses=frozenset({RunStatus.RUNNING})))
    idle = frozenset({RunStatus.QUEUED, RunStatus.INTERRUPTED})
    unowned, more_unowned = await _list(store, principal, RunFilter(statuses=idle))
    start = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=_HOURS - 1)
    recent, is_partial = await _list(store, principal, RunFilter(created_after=start))
    due = [record for record in unowned if record.not_before <= now]
    return Fleet(
        workers=_group_by_worker(active),
        queued=sum(record.status is RunStatus.QUEUED for record in unowned),
        interrupted=len(unowned) - sum(record.status is RunStatus.QUEUED for record in unowned),
        more_unowned=more_unowned,
        oldest=summarize_run(min(due, key=lambda record: record.created_at)) if due else None,
        hours=_group_by_hour(recent, start),
        is_partial=is_partial,
    )


async def _list(store: CheckpointStore, principal: Principal, filter: RunFilter) -> tuple[list[RunRecord], bool]:
    if not principal.sees_all and principal.run_id is None:
        filter = msgspec.structs.replace(filter, caller_id=principal.caller_id)
    found: list[RunRecord] = []
    cursor: str | None = None
    while len(found) < _MAX_RECORDS:
        page = await store.list_page(filter, limit=_PAGE, cursor=cursor)
        found += [record for record in page.records if principal.can_see(record.run_id, record.caller_id)]
        cursor = page.cursor
        if cursor is None:
            return found, False
    return found, True


def _group_by_worker(records: Sequence[RunRecord]) -> list[WorkerRow]:
    held: dict[str, list[RunRecord]] = {}
    for record in records:
        held.setdefault(record.owner or "", []).append(record)
    return [
        WorkerRow(
            worker_id=worker_id,
            alive=any(record.owner_alive for record in runs),
            runs=[summarize_run(record) for record in runs],
            last_write=max(record.updated_at for record in runs),
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
