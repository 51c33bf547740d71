"""The rows of the runs list, and the counts by status."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.waiting import PERSON_KINDS, WaitingCall
from holdfast.runtime.reading import RunQuery, RunSummary, list_records, present_status, summarize_run
from holdfast.runtime.transcript import read_record_waits
from holdfast.web.auth import Principal
from holdfast.web.ui.views.explanation import Piece, explain_run
from holdfast.web.ui.views.filters import NEEDS_YOU, STATUS_CHOICES, RunsFilter

PAGE_SIZE = 50
#: Records read at a time, and in all, for a filter that the store cannot apply.
_SCAN_PAGE, _SCAN_LIMIT = 250, 5_000
#: Runs of one status are counted up to this many.
COUNT_LIMIT = 200

_EMPTY = RunQuery(status=[])


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    run: RunSummary
    why: Sequence[Piece]
    needs_person: bool


class RunRows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list."""

    rows: Sequence[RunRow]
    cursor: str | None
    #: The scan has stopped at its limit: there may be runs that fit further on.
    stopped: bool = False


def make_row(record: RunRecord, now: datetime) -> RunRow:
    """Make the line of a run."""
    run, waits = summarize_run(record), read_record_waits(record)
    return RunRow(run=run, why=explain_run(run, waits, now), needs_person=needs_person(run, waits))


def needs_person(run: RunSummary, waits: Sequence[WaitingCall]) -> bool:
    """Whether the run continues only after a person has acted."""
    if run.status is RunStatus.PARKED:
        return True
    return run.status is RunStatus.WAITING and any(call.kind in PERSON_KINDS for call in waits)


def restrict(query: RunQuery, principal: Principal) -> RunQuery:
    """Return the query, limited to the runs that exist for the principal, as far as the store can."""
    if principal.sees_all or principal.run_id is not None:
        return query
    if query.get("caller") not in (None, principal.caller_id):
        return _EMPTY
    return RunQuery(**query | {"caller": principal.caller_id})


async def read_rows(
    store: CheckpointStore, filter: RunsFilter, principal: Principal, now: datetime, cursor: str | None
) -> RunRows:
    """Return the next page of the list. It has more lines than asked for if the filter had to be applied here."""
    query = restrict(filter.to_query(), principal)
    scans = bool(filter.words) or filter.min_cost is not None or filter.max_cost is not None
    scans = scans or filter.status == NEEDS_YOU or principal.run_id is not None
    size = _SCAN_PAGE if scans else PAGE_SIZE
    rows: list[RunRow] = []
    for _ in range(0, _SCAN_LIMIT, size):
        page = await list_records(store, limit=size, cursor=cursor, **query)
        visible = [record for record in page.records if principal.can_see(record.run_id, record.caller_id)]
        found = [make_row(record, now) for record in visible]
        rows += [row for row in found if filter.matches(row.run, needs_person=row.needs_person)]
        cursor = page.cursor
        if cursor is None or len(rows) >= PAGE_SIZE:
            return RunRows(rows=rows, cursor=cursor)
    return RunRows(rows=rows, cursor=cursor, stopped=True)


async def count_statuses(store: CheckpointStore, filter: RunsFilter, principal: Principal) -> Mapping[str, int] | None:
    """Count the runs of each status, up to `COUNT_LIMIT`. `None` if the filter is not one of the store."""
    if filter.words or filter.min_cost is not None or filter.max_cost is not None or principal.run_id is not None:
        return None
    query = restrict(filter.to_query(with_status=False), principal)
    counts: Counter[str] = Counter()
    if query is _EMPTY:
        return counts
    statuses = [status for status in STATUS_CHOICES if status != NEEDS_YOU]
    # `interrupted` would read the running runs again.
    reads = [
        list_records(store, limit=COUNT_LIMIT, **(query | {"status": status}))
        for status in statuses
        if status != RunStatus.INTERRUPTED
    ]
    interrupted = list_records(store, limit=COUNT_LIMIT, **(query | {"status": RunStatus.INTERRUPTED}))
    for page in await asyncio.gather(*reads, interrupted):
        for record in page.records:
            status = present_status(record)
            counts[status] += 1
            if status in (RunStatus.WAITING, RunStatus.PARKED):
                counts[NEEDS_YOU] += needs_person(summarize_run(record), read_record_waits(record))
    return counts


async def count_pending(store: CheckpointStore, principal: Principal) -> int:
    """Count the calls that wait for a person, up to `COUNT_LIMIT` runs."""
    query = restrict(RunQuery(status=[RunStatus.WAITING]), principal)
    page = await list_records(store, limit=COUNT_LIMIT, **query)
    return sum(
        call.kind in PERSON_KINDS
        for record in page.records
        if principal.can_see(record.run_id, record.caller_id)
        for call in read_record_waits(record)
    )
