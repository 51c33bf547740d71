"""The fleet: workers, queues, jobs, budgets."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.batteries.schedule import Job, JobNotFound, ScheduleError
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, iter_runs
from holdfast.checkpoint.workers import this_process
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.errors import DefinitionError
from holdfast.db.tables import TablesError
from holdfast.runtime.reading.activity import WorkerRuns, join_workers
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.web.auth import Principal, restrict_filter
from holdfast.web.ui.live import Fragment, stream_fragments
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.pages.limits_page import Budgets, can_change, read_budgets, read_limits
from holdfast.web.ui.pages.runs_page import StatusCounts, count_all
from holdfast.web.ui.run_view.actions import read_form, redirect
from holdfast.web.ui.site import Site, can_start, get_principal
from holdfast.web.ui.untaken import Untaken, find_untaken_in_fleet

#: Fires of a job that the page shows.
_FIRES = 3


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its next fires."""

    job: Job
    fires: Sequence[datetime]
    #: This App has the agent.
    is_known: bool

    @property
    def runs_query(self) -> str:
        """The filter of the runs list that finds the runs of this job."""
        return self.job.run_id(self.job.next_at).rpartition(":")[0]


class Batteries(msgspec.Struct, frozen=True, kw_only=True):
    """What the Fleet page shows of an App's batteries. `None`: the App has no such battery."""

    jobs: Sequence[JobRow] | None
    budgets: Budgets | None
    #: What could not be read.
    problem: str = ""


async def read_batteries(app: App, principal: Principal) -> Batteries:
    """Read the jobs of the schedule and the accounts of the budget."""
    try:
        jobs = await _read_jobs(app, principal) if app.has_schedule else None
        return Batteries(jobs=jobs, budgets=await read_budgets(app, principal))
    except TablesError as exc:
        return Batteries(jobs=None, budgets=None, problem=f"schedules and budgets cannot be read: {type(exc).__name__}")


def can_see_job(principal: Principal, job: Job) -> bool:
    """Whether the job exists for the principal: it submits runs of the principal's caller id."""
    return principal.run_id is None and (principal.sees_all or job.caller_id == principal.caller_id)


async def _read_jobs(app: App, principal: Principal) -> list[JobRow]:
    rows: list[JobRow] = []
    for job in await app.schedule.jobs():
        if can_see_job(principal, job):
            fires: Sequence[datetime] = [job.next_at]
            with suppress(ScheduleError):  # cronsim is not installed here, or the job was just removed
                fires = await app.schedule.upcoming(job.name, _FIRES)
            rows.append(JobRow(job=job, fires=fires, is_known=job.agent in app.agents))
    return rows


_PAGE = 500
#: Records that each part of the view reads at most.
_MAX_RECORDS = 1_000
_HOURS = 24
_UNOWNED = frozenset({RunStatus.QUEUED, RunStatus.INTERRUPTED})


class FleetWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker and what it holds."""

    worker_id: str
    alive: bool
    runs: Sequence[RunSummary]
    #: Its host and process, and its last heartbeat. `None` if only its runs are known.
    process: str | None = None
    last_heartbeat: datetime | None = None
    #: The process that serves the page.
    is_own: bool = False
    #: The agents whose runs it takes.
    agents: Sequence[str] = ()


class Hour(msgspec.Struct, kw_only=True):
    """The runs created within one hour."""

    start: datetime
    created: int = 0
    failed: int = 0
    cost_usd: float = 0.0


class FleetOverview(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at one moment."""

    at: datetime
    workers: Sequence[FleetWorker]
    #: Workers that hold no run are among them.
    has_all_workers: bool
    #: By status, for `queued` and `interrupted`.
    depth: StatusCounts
    #: The oldest run that waits for a worker and is due.
    oldest: RunSummary | None
    #: A run that waits because no live worker knows its agent.
    untaken: Untaken | None
    hours: Sequence[Hour]
    #: There are more runs than were read.
    is_partial: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal if nothing has changed but times."""
        workers = [(each.worker_id, each.alive, [run.run_id for run in each.runs]) for each in self.workers]
        untaken = self.untaken and self.untaken.run.agent
        return workers, self.depth, self.oldest and self.oldest.run_id, untaken, self.hours


async def read_fleet(store: RunStore, principal: Principal, now: datetime, *, takes_runs: bool = True) -> FleetOverview:
    """Read the fleet, as far as it is visible to the principal.

    Args:
        takes_runs: the process that serves the page is a worker. Else it is not counted.
    """
    active, _ = await _list(store, principal, RunFilter(statuses=frozenset({RunStatus.RUNNING})))
    start = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=_HOURS - 1)
    recent, is_partial = await _list(store, principal, RunFilter(created_after=start))
    counted = await store.read_fleet() if principal.sees_all else None
    workers = [_make_row(worker) for worker in join_workers(() if counted is None else counted.workers, active)]
    return FleetOverview(
        at=now,
        workers=[each for each in workers if takes_runs or not each.is_own or each.runs],
        has_all_workers=counted is not None,
        depth=await _count_unowned(store, principal) if counted is None else StatusCounts(counts=count_all(counted)),
        oldest=await _find_oldest(store, principal, now),
        untaken=None if counted is None else await find_untaken_in_fleet(store, counted, now),
        hours=_group_by_hour(recent, start),
        is_partial=is_partial,
    )


async def _list(store: RunStore, principal: Principal, filter: RunFilter) -> tuple[list[RunRecord], bool]:
    filter = restrict_filter(filter, principal)
    found: list[RunRecord] = []
    cursor: str | None = None
    while len(found) < _MAX_RECORDS:
        page = await store.list_page(filter, limit=_PAGE, cursor=cursor)
        found += [record for record in page.records if principal.can_see(record.run_id, record.caller_id)]
        cursor = page.cursor
        if cursor is None:
            return found, False
    return found, True


async def _count_unowned(store: RunStore, principal: Principal) -> StatusCounts:
    records, is_partial = await _list(store, principal, RunFilter(statuses=_UNOWNED))
    counts = Counter(record.status.value for record in records)
    return StatusCounts(counts=counts, more=frozenset(status.value for status in _UNOWNED if is_partial))


async def _find_oldest(store: RunStore, principal: Principal, now: datetime) -> RunSummary | None:
    """Return the oldest run that is due and waits for a worker."""
    seen = 0
    async for record in iter_runs(store, restrict_filter(RunFilter(statuses=_UNOWNED), principal)):
        seen += 1
        if record.not_before <= now and principal.can_see(record.run_id, record.caller_id):
            return summarize_run(record)
        if seen >= _MAX_RECORDS:  # all of them are delayed
            break
    return None


def _make_row(worker: WorkerRuns) -> FleetWorker:
    process = None if worker.heartbeat is None else worker.heartbeat.worker.process
    return FleetWorker(
        worker_id=worker.worker_id,
        alive=worker.alive,
        runs=[summarize_run(record) for record in worker.runs],
        process=None if process is None else f"{process.host.partition('/')[0]} · {process.pid}",
        last_heartbeat=None if worker.heartbeat is None else worker.heartbeat.last_at,
        is_own=process == this_process(),
        agents=() if worker.heartbeat is None else worker.heartbeat.worker.agents or (),
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


#: A live page reads schedules and budgets again after this many seconds: they are in tables of their own.
_BATTERIES_INTERVAL = 5.0


async def show_fleet(site: Site, request: Request) -> Response:
    """Show the fleet."""
    return site.render(request, "fleet.html", **await _make_context(site, request, _BatteriesReader(site, request)))


async def stream_fleet(site: Site, request: Request) -> Response:
    """Send the fleet whenever it has changed."""
    batteries = _BatteriesReader(site, request)

    async def read() -> Fragment:
        context = await _make_context(site, request, batteries)
        key = (context["fleet"].key, context["batteries"], context["limits"])
        return Fragment(key, lambda: site.render_text(request, "fleet_live.html", **context))

    return stream_fragments(site.app.changes, get_principal(request), read)


async def run_job(site: Site, request: Request) -> Response:
    """Submit an extra run of a job, and show it."""
    principal = get_principal(request)
    name = (await read_form(request)).get("job", "")
    if not site.app.has_schedule or not can_start(site, principal):
        raise DefinitionError("no job can be run here: the page needs an App with agents, and its schedule")
    if not any(job.name == name and can_see_job(principal, job) for job in await site.app.schedule.jobs()):
        raise JobNotFound(name)
    run_id = await site.app.schedule.run_now(name)
    return redirect(request, f"/runs/{run_id}", "started")


class _BatteriesReader:
    """Reads schedules and budgets now and then."""

    def __init__(self, site: Site, request: Request) -> None:
        self._site, self._principal = site, get_principal(request)
        self._latest: Batteries | None = None
        self._read_at = 0.0

    async def read(self) -> Batteries:
        if self._latest is None or SYSTEM_CLOCK.monotonic() - self._read_at >= _BATTERIES_INTERVAL:
            self._latest = await read_batteries(self._site.app, self._principal)
            self._read_at = SYSTEM_CLOCK.monotonic()
        return self._latest


async def _make_context(site: Site, request: Request, batteries: _BatteriesReader) -> dict[str, Any]:
    principal = get_principal(request)
    return {
        "section": "fleet",
        "fleet": await read_fleet(site.store, principal, utc_now(), takes_runs=site.app.worker_settings.take_runs),
        "batteries": await batteries.read(),
        "limits": await read_limits(site, principal),
        "can_change": can_change(principal),
        "can_start": can_start(site, principal),
        "pending_count": await count_needs(site.store, principal),
    }
