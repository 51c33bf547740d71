"""Runs that no live worker takes: none of them knows the agent."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import msgspec

from holdfast.checkpoint.record import RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Fleet, this_process
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


class FleetReader:
    """Reads the fleet once, if it is asked for: counting all runs is the most expensive part of a page."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self._fleet: Fleet | None = None

    async def read(self) -> Fleet:
        if self._fleet is None:
            self._fleet = await self.store.read_fleet()
        return self._fleet


async def find_untaken(
    site: Site, principal: Principal, runs: Iterable[RunSummary], now: datetime, fleet: FleetReader | None = None
) -> Untaken | None:
    """Return the run among these that waits although a live worker is idle. The store is read only if one waits."""
    late = [run for run in runs if waits_too_long(run, now)]
    if not late or not principal.sees_all:
        return None
    busy, live = await _read_workers(fleet or FleetReader(site.store), counts_self=site.app.worker_settings.take_runs)
    if live and live <= busy:
        return None
    return Untaken(run=min(late, key=_get_time), has_live=bool(live))


def _get_time(run: RunSummary) -> datetime:
    return run.updated_at


async def _read_workers(fleet: FleetReader, *, counts_self: bool) -> tuple[set[str], set[str]]:
    """Return the workers that execute runs, and all that are alive. The process of the page may be no worker."""
    running = await fleet.store.list_page(RunFilter(statuses=frozenset({RunStatus.RUNNING})), limit=_MAX_RUNNING)
    workers = join_workers((await fleet.read()).workers, running.records)
    live = [
        each
        for each in workers
        if each.alive
        and (counts_self or each.heartbeat is None or each.heartbeat.worker.process != this_process() or each.runs)
    ]
    return {each.worker_id for each in live if each.runs}, {each.worker_id for each in live}
