"""Runs that no live worker takes: none of them knows the agent."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.record import RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Fleet, count_live_workers
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.web.auth import Principal
from holdfast.web.ui.site import Site

#: An idle worker takes a due run of an agent that it knows long before this.
UNTAKEN_AFTER = timedelta(seconds=30)
#: Runs of one agent that are read at most.
_PAGE = 50


class Untaken(msgspec.Struct, frozen=True, kw_only=True):
    """The run that waits longest, and whether any live worker takes runs."""

    run: RunSummary
    has_live: bool


def waits_too_long(run: RunSummary, now: datetime) -> bool:
    """Whether a worker that knows the agent would have taken the run by now."""
    if run.status not in (RunStatus.QUEUED, RunStatus.INTERRUPTED) or run.parent is not None:
        return False  # its parent starts a child
    return now - max(run.updated_at, run.not_before) > UNTAKEN_AFTER


async def find_untaken(site: Site, principal: Principal, runs: Iterable[RunSummary], now: datetime) -> Untaken | None:
    """Return the longest waiting of these runs whose agent no live worker knows. Reads the workers if one waits."""
    late = [run for run in runs if waits_too_long(run, now)]
    if not late or not principal.sees_all:
        return None
    known = count_live_workers(await site.store.list_workers())
    if known is None:
        return None
    untaken = [run for run in late if run.agent not in known]
    return Untaken(run=min(untaken, key=_get_time), has_live=bool(known)) if untaken else None


async def find_untaken_in_fleet(store: RunStore, fleet: Fleet, now: datetime) -> Untaken | None:
    """As `find_untaken`, among all runs of the store. Reads a run only if there is one."""
    known = count_live_workers(fleet.workers)
    if known is None:
        return None
    late = [
        (each.oldest, each.agent_name)
        for each in fleet.counts
        if each.agent_name not in known and each.oldest is not None and now - each.oldest > UNTAKEN_AFTER
    ]
    for _, agent_name in sorted(late):
        wanted = RunFilter(agent_name=agent_name, interrupted=True)
        page = await store.list_page(wanted, limit=_PAGE, oldest_first=True)
        for run in map(summarize_run, page.records):
            if waits_too_long(run, now):
                return Untaken(run=run, has_live=bool(known))
    return None


def _get_time(run: RunSummary) -> datetime:
    return run.updated_at
