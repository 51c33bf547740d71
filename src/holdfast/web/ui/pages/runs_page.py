"""The runs list: its rows, the counts by status, and the page."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Fleet
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.operations.bulk_actions import BULK_ACTIONS
from holdfast.runtime.operations.conversations import CONVERSATION_LABEL
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import Piece, RunSummary, describe_run, summarize_run
from holdfast.runtime.reading.run_views import RunQuery, list_records
from holdfast.runtime.reading.transcript import read_record_waits
from holdfast.web.auth import Principal, list_visible, restrict
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.pages.run_filter import NEEDS_YOU, STATUS_CHOICES, RunsFilter, parse_filter
from holdfast.web.ui.pages.saved_filters import list_words, read_saved
from holdfast.web.ui.run_view.actions import redirect
from holdfast.web.ui.site import Site, can_start, get_principal
from holdfast.web.ui.untaken import find_untaken

PAGE_SIZE = 50
#: Records read at a time, and in all, for a filter that the store cannot apply.
_SCAN_PAGE, _SCAN_LIMIT = 250, 5_000
#: Runs of one status that are counted by reading their records.
_READ_LIMIT = 200

_STATUSES = tuple(RunStatus(status) for status in STATUS_CHOICES if status != NEEDS_YOU)
#: Runs of these may need a person. Only their records say whether they do.
_NEEDING = (RunStatus.WAITING, RunStatus.PARKED)


class ListedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list."""

    run: RunSummary
    why: Sequence[Piece]
    needs_person: bool
    #: Child runs that are folded, as far as the page has met them.
    children: int = 0
    #: A child run, shown below its parent.
    is_child: bool = False


class RunRows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the list."""

    rows: Sequence[ListedRun]
    cursor: str | None
    #: The scan has stopped at its limit: there may be runs that fit further on.
    stopped: bool = False
    #: Child runs that are not shown.
    folded: int = 0


class StatusCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of runs by status, and of those that need a person."""

    counts: Mapping[str, int]
    #: There are more of these than were counted.
    more: frozenset[str] = frozenset()

    def format(self, name: str) -> str:
        """Return the number of a status, or of all for an empty name: `12`, or `200+` if there are more."""
        if name:
            return f"{self.counts.get(name, 0):,}{'+' if name in self.more else ''}"
        total = sum(count for status, count in self.counts.items() if status != NEEDS_YOU)
        return f"{total:,}{'+' if self.more - {NEEDS_YOU} else ''}"


def make_row(record: RunRecord, now: datetime) -> ListedRun:
    """Make the line of a run."""
    run, waits = summarize_run(record), read_record_waits(record)
    return ListedRun(run=run, why=describe_run(run, waits, now), needs_person=needs_person(run, waits))


def needs_person(run: RunSummary, waits: Sequence[WaitingCall]) -> bool:
    """Whether the run continues only after a person has acted."""
    if run.status is RunStatus.PARKED:
        return True
    return run.status is RunStatus.WAITING and any(call.needs_answer for call in waits)


async def read_rows(
    store: RunStore, filter: RunsFilter, principal: Principal, now: datetime, cursor: str | None
) -> RunRows:
    """Return the next page of the list. It has more lines than asked for if the filter had to be applied here.

    A list without a filter folds child runs. A sorted list is the top of the runs that were read.
    """
    query = filter.to_query()
    scans = bool(filter.words) or filter.min_cost is not None or filter.max_cost is not None
    scans = scans or filter.status == NEEDS_YOU or bool(filter.sort)
    size = _SCAN_PAGE if scans else PAGE_SIZE
    rows: list[ListedRun] = []
    for _ in range(0, _SCAN_LIMIT, size):
        page = await list_visible(store, principal, limit=size, cursor=cursor, **query)
        found = [make_row(record, now) for record in page.records]
        rows += [row for row in found if filter.matches(row.run, needs_person=row.needs_person)]
        cursor = page.cursor
        if cursor is None or (not filter.sort and len(rows) >= PAGE_SIZE):
            break
    stopped = cursor is not None and (bool(filter.sort) or len(rows) < PAGE_SIZE)
    shown = rows if filter.text or filter.status else _fold(rows)
    if filter.sort:
        shown = sorted(shown, key=_SORT_KEYS[filter.sort], reverse=True)[:PAGE_SIZE]
        return RunRows(rows=shown, cursor=None, stopped=stopped, folded=len(rows) - len(shown))
    return RunRows(rows=shown, cursor=cursor, stopped=stopped, folded=len(rows) - len(shown))


_SORT_KEYS: Mapping[str, Callable[[ListedRun], Any]] = {
    "cost": lambda row: row.run.usage.cost_usd,
    "worked": lambda row: row.run.elapsed,
}


def _fold(rows: Sequence[ListedRun]) -> list[ListedRun]:
    """Leave out child runs, and count them at their parents."""
    children = Counter(row.run.parent for row in rows if row.run.parent is not None)
    return [msgspec.structs.replace(row, children=children[row.run.run_id]) for row in rows if row.run.parent is None]


async def _open(store: RunStore, page: RunRows, principal: Principal, parent: str, now: datetime) -> RunRows:
    """Add the children of a run below it."""
    if not any(row.run.run_id == parent for row in page.rows):
        return page
    found = await list_visible(store, principal, limit=PAGE_SIZE, parent=parent)
    children = [msgspec.structs.replace(make_row(each, now), is_child=True) for each in found.records[::-1]]
    rows = [each for row in page.rows for each in ((row, *children) if row.run.run_id == parent else (row,))]
    return msgspec.structs.replace(page, rows=rows)


async def count_statuses(store: RunStore, filter: RunsFilter, principal: Principal) -> StatusCounts | None:
    """Count the runs of each status. `None` if the filter is not one of the store."""
    if filter.words or filter.min_cost is not None or filter.max_cost is not None or principal.run_id is not None:
        return None
    query = restrict(filter.to_query(with_status=False), principal)
    if query.get("status") == []:
        return StatusCounts(counts={})
    if not principal.sees_all or any(query.values()):
        return await _count_by_reading(store, query, _STATUSES)
    read = await _count_by_reading(store, query, _NEEDING)
    counts = {**count_all(await store.read_fleet()), NEEDS_YOU: read.counts[NEEDS_YOU]}
    return StatusCounts(counts=counts, more=read.more & {NEEDS_YOU})


def count_all(fleet: Fleet) -> dict[str, int]:
    """Return the number of runs by status."""
    counts: Counter[str] = Counter()
    for each in fleet.counts:
        counts[each.status.value] += each.count
    return counts


async def _count_by_reading(store: RunStore, query: RunQuery, statuses: Sequence[RunStatus]) -> StatusCounts:
    reads = [list_records(store, limit=_READ_LIMIT, **(query | {"status": status})) for status in statuses]
    counts: Counter[str] = Counter()
    more: set[str] = set()
    for status, page in zip(statuses, await asyncio.gather(*reads), strict=True):
        counts[status.value] = len(page.records)
        found = {status.value}
        if status in _NEEDING:
            found.add(NEEDS_YOU)
            counts[NEEDS_YOU] += sum(
                needs_person(summarize_run(record), read_record_waits(record)) for record in page.records
            )
        if page.cursor is not None:
            more |= found
    return StatusCounts(counts=counts, more=frozenset(more))


async def show_runs(site: Site, request: Request) -> Response:
    """Show a page of the list. A filter that is not valid is shown with its error."""
    try:
        context = await read_list(site, request)
    except DefinitionError as exc:
        wanted = RunsFilter(text=request.query_params.get("q", ""))
        context = {"filter": wanted, "page": RunRows(rows=[], cursor=None), "counts": None, "error": str(exc)}
        context |= {"section": "runs", "opened": "", "cursor": None, "untaken": None}
    pending = await count_needs(site.store, get_principal(request))
    context["can_control"] = "control" in get_principal(request).scopes
    context["can_start"] = can_start(site, get_principal(request))
    context["saved"] = read_saved(request)
    context["words"] = list_words(site, get_principal(request), (row.run for row in context["page"].rows))
    status = 422 if context.get("error") else 200
    return site.render(request, "runs.html", status=status, **_COMMON, pending_count=pending, **context)


async def stream_runs(site: Site, request: Request) -> Response:
    """Send the list whenever it has changed."""
    principal = get_principal(request)

    async def read() -> Fragment:
        context = await read_list(site, request)
        pending = await count_needs(site.store, principal)
        key = [
            [(row.run.run_id, row.run.status, row.run.updated_at) for row in context["page"].rows],
            context["counts"],
            context["untaken"] and context["untaken"].run.agent,
            pending,
            site.kill_switch.report if site.kill_switch is not None else "",
        ]
        return Fragment(
            key,
            lambda: site.render_text(request, "runs_live.html", **_COMMON, **context | {"pending_count": pending}),
        )

    return stream_fragments(site.app.changes, get_principal(request), read)


async def kill_worker(site: Site, request: Request) -> Response:
    """Kill a worker of the demo. The list says what followed."""
    assert site.kill_switch is not None, "only the demo has this page"
    site.kill_switch.asked.set()
    return redirect(request, "/", "killed")


async def read_list(site: Site, request: Request) -> dict[str, Any]:
    """Return the context of the part of the page that changes.

    Raises:
        DefinitionError: the filter is not valid. InvalidCursor: the cursor is not.
    """
    now, params, principal = utc_now(), request.query_params, get_principal(request)
    wanted = parse_filter(params.get("q", ""), params.get("status", ""), now, params.get("sort", ""))
    labels = wanted.query.get("labels") or {}
    cursor = params.get("cursor") or None
    page = await read_rows(site.store, wanted, principal, now, cursor)
    opened = params.get("open", "")
    if opened:
        page = await _open(site.store, page, principal, opened, now)
    counts = await count_statuses(site.store, wanted, principal)
    untaken = await find_untaken(site, principal, [row.run for row in page.rows], now)
    return {
        "untaken": untaken,
        "filter": wanted,
        "page": page,
        "counts": counts,
        "cursor": cursor,
        "opened": opened,
        "can_control": "control" in principal.scopes,
        "error": "",
        "section": "conversations" if labels.items() >= CONVERSATION_LABEL.items() else "runs",
    }


_COMMON = {"statuses": STATUS_CHOICES, "bulk_actions": tuple(BULK_ACTIONS)}
