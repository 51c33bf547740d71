"""What a fleet does now: its workers, its queues, how fast runs end, and the runs that are stuck."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.record import TERMINAL_STATUSES, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import RunCount, WorkerHeartbeat
from holdfast.runtime.reading.run_summary import QUIET_AFTER, describe_reason, summarize_run

#: Records of running, interrupted, parked and waiting runs that are read at most, each.
_MAX_RECORDS = 1000


class WorkerRuns(NamedTuple):
    """A worker, and the running runs that it owns."""

    worker_id: str
    alive: bool
    #: `None` if only its runs are known.
    heartbeat: WorkerHeartbeat | None
    runs: Sequence[RunRecord]


class WorkerActivity(msgspec.Struct, frozen=True, kw_only=True):
    """A worker: busy, idle, or dead and not yet deleted from the store."""

    worker_id: str
    alive: bool
    runs: int
    #: Those whose runs it takes, and those whose runs it holds.
    agents: Sequence[str]
    #: The newest write of its runs.
    last_write: datetime | None
    #: `None` if only its runs are known.
    host: str | None = None
    pid: int | None = None
    last_heartbeat: datetime | None = None


class StuckRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that makes no progress."""

    run_id: str
    agent: str
    status: RunStatus
    #: When it was last written.
    since: datetime
    steps: int
    strikes: int
    #: Why, in words: see `RunSummary`.
    description: str


class ReasonCount(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one agent that do not continue, for the same reason."""

    agent: str
    status: RunStatus
    #: Without ids, texts and times: see `describe_reason`.
    reason: str
    count: int
    #: When the oldest of them was last written.
    since: datetime


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """A store at one moment."""

    at: datetime
    counts: Sequence[RunCount]
    workers: Sequence[WorkerActivity]
    stuck: Sequence[StuckRun]
    #: There are more runs than were read.
    is_partial: bool
    #: Finished steps of the runs that are running.
    steps: dict[str, int]
    #: The stuck and the waiting runs, by reason: the largest group first.
    reasons: Sequence[ReasonCount] = ()

    @property
    def ended(self) -> int:
        """Runs that have ended and whose retention has not passed."""
        return sum(each.count for each in self.counts if each.status in TERMINAL_STATUSES)

    @property
    def total(self) -> int:
        return sum(each.count for each in self.counts)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Changes per minute between two moments. Runs that are purged meanwhile are missing."""

    created: float
    ended: float
    steps: float


async def read_activity(store: RunStore, now: datetime) -> Activity:
    """Read what the runs of a store do now. Changes nothing."""
    fleet = await store.read_fleet()
    counts = fleet.counts
    running, more_running = await _read(store, RunStatus.RUNNING)
    interrupted, more_interrupted = await _read(store, RunStatus.INTERRUPTED)
    parked, more_parked = await _read(store, RunStatus.PARKED)
    waiting, more_waiting = await _read(store, RunStatus.WAITING)
    alive = [record for record in running if record.owner_alive]
    stuck = [record for record in running if not record.owner_alive or now - record.updated_at > QUIET_AFTER]
    stuck += [*parked, *(record for record in interrupted if record.strikes > 1)]
    return Activity(
        at=now,
        counts=counts,
        workers=[_describe_worker(each) for each in join_workers(fleet.workers, running)],
        stuck=[_describe(record, now) for record in sorted(stuck, key=lambda record: record.updated_at)],
        is_partial=more_running or more_interrupted or more_parked or more_waiting,
        reasons=_count_reasons([*stuck, *waiting], now),
        steps={record.run_id: summarize_run(record).steps for record in alive},
    )


def compare_activity(before: Activity, now: Activity) -> Rates | None:
    """Return the changes per minute; `None` if no time has passed."""
    minutes = (now.at - before.at) / timedelta(minutes=1)
    if minutes <= 0:
        return None
    steps = sum(max(0, count - before.steps.get(run_id, count)) for run_id, count in now.steps.items())
    return Rates(
        created=max(0, now.total - before.total) / minutes,
        ended=max(0, now.ended - before.ended) / minutes,
        steps=steps / minutes,
    )


async def _read(store: RunStore, status: RunStatus) -> tuple[list[RunRecord], bool]:
    page = await store.list_page(RunFilter(statuses=frozenset({status})), limit=_MAX_RECORDS)
    return list(page.records), page.cursor is not None


def join_workers(heartbeats: Sequence[WorkerHeartbeat], running: Sequence[RunRecord]) -> list[WorkerRuns]:
    """Return the registered workers and the owners of these runs. Those that are alive come first, then the busiest."""
    owned: dict[str, list[RunRecord]] = {}
    for record in running:
        owned.setdefault(record.owner or "", []).append(record)
    workers = [
        WorkerRuns(each.worker.worker_id, each.alive, each, owned.pop(each.worker.worker_id, ())) for each in heartbeats
    ]
    for owner, runs in owned.items():
        workers.append(WorkerRuns(owner, any(record.owner_alive for record in runs), None, runs))
    return sorted(workers, key=lambda worker: (not worker.alive, -len(worker.runs), worker.worker_id))


def _describe_worker(worker: WorkerRuns) -> WorkerActivity:
    heartbeat = worker.heartbeat
    known = () if heartbeat is None else heartbeat.worker.agents or ()
    return WorkerActivity(
        worker_id=worker.worker_id,
        alive=worker.alive,
        runs=len(worker.runs),
        agents=sorted({*known, *(record.agent_name for record in worker.runs)}),
        last_write=max((record.updated_at for record in worker.runs), default=None),
        host=None if heartbeat is None else heartbeat.worker.process.host.partition("/")[0],
        pid=None if heartbeat is None else heartbeat.worker.process.pid,
        last_heartbeat=None if heartbeat is None else heartbeat.last_at,
    )


def _count_reasons(records: Sequence[RunRecord], now: datetime) -> Sequence[ReasonCount]:
    groups: dict[tuple[str, RunStatus, str], list[RunRecord]] = {}
    for record in records:
        run = summarize_run(record, now)
        groups.setdefault((run.agent, run.status, describe_reason(run)), []).append(record)
    counts = [
        ReasonCount(
            agent=agent,
            status=status,
            reason=reason,
            count=len(members),
            since=min(record.updated_at for record in members),
        )
        for (agent, status, reason), members in groups.items()
    ]
    return sorted(counts, key=lambda each: (-each.count, each.agent, each.reason))


def _describe(record: RunRecord, now: datetime) -> StuckRun:
    run = summarize_run(record, now)
    return StuckRun(
        run_id=record.run_id,
        agent=record.agent_name,
        status=run.status,
        since=record.updated_at,
        steps=run.steps,
        strikes=record.strikes,
        description=run.description,
    )
