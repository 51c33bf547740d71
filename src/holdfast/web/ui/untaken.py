"""Runs that no live worker takes: none of them knows the agent."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.record import RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import this_process
from holdfast.runtime.reading.activity import join_workers
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.auth import Principal
from holdfast.web.ui.site import Site

#: An idle worker takes a due run of an agent that it knows long before this.
UNTAKEN_AFTER = timedelta(seconds=30)
#: Running runs that are read at most.
_MAX_RUNNING = 500


class Untaken(msgspec.Struct, frozen=True, kw_only=True):
    """The run that waits longest, and whether any worker is live."""

    run: RunSummary
    has_live: bool


def waits_too_long(run: RunSummary, now: datetime) -> bool:
    """Whether a worker that knows the agent would have taken the run by now."""
    if run.status not in (RunStatus.QUEUED, RunStatus.INTERRUPTED):
        return False
    return now - max(run.updated_at, run.not_before) > UNTAKEN_AFTER


async def find_untaken(site: Site, principal: Principal, runs: Iterable[RunSummary], now: datetime) -> Untaken | None:
    """Return the run among these that waits although a live worker is idle. The store is read only if one waits."""
    late = [run for run in runs if waits_too_long(run, now)]
    if not late or not principal.sees_all:
        return None
    busy, live = await _read_workers(site.store, counts_self=site.app.worker_settings.take_runs)
    if live and live <= busy:
        return None
    return Untaken(run=min(late, key=_get_time), has_live=bool(live))


def _get_time(run: RunSummary) -> datetime:
    return run.updated_at


async def _read_workers(store: RunStore, *, counts_self: bool) -> tuple[set[str], set[str]]:
    """Return the workers that execute runs, and all that are alive. The process of the page may be no worker."""
    running = await store.list_page(RunFilter(statuses=frozenset({RunStatus.RUNNING})), limit=_MAX_RUNNING)
    workers = join_workers((await store.read_fleet()).workers, running.records)
    live = [
        each
        for each in workers
        if each.alive
        and (counts_self or each.heartbeat is None or each.heartbeat.worker.process != this_process() or each.runs)
    ]
    return {each.worker_id for each in live if each.runs}, {each.worker_id for each in live}
