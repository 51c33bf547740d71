"""What a store knows of its fleet without reading records: its workers, and how many runs have each status."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.claims import WorkerHeartbeat
from holdfast.checkpoint.record import RunStatus

#: The statuses of runs that wait for a worker.
_QUEUE = (RunStatus.QUEUED, RunStatus.INTERRUPTED)


class RunCount(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one agent that have one status. A running run without a live owner counts as interrupted."""

    agent_name: str
    status: RunStatus
    count: int
    #: Of queued and interrupted runs: how many a worker may take now, and the last write of the oldest of them.
    due: int = 0
    oldest: datetime | None = None


class CountedRow(NamedTuple):
    """Runs of one agent, one status and one owner, as a store counts them."""

    agent_name: str
    status: RunStatus
    owner_alive: bool
    runs: int
    due: int
    oldest: datetime | None


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of a store, and how many runs it has."""

    #: By id. A dead one is in the list until the store forgets it.
    workers: Sequence[WorkerHeartbeat]
    #: By agent and status.
    counts: Sequence[RunCount]


def merge_rows(rows: Iterable[CountedRow]) -> list[RunCount]:
    """Return one count for each agent and status, in their order."""
    merged: dict[tuple[str, RunStatus], RunCount] = {}
    for row in rows:
        orphaned = row.status is RunStatus.RUNNING and not row.owner_alive
        status = RunStatus.INTERRUPTED if orphaned else row.status
        before = merged.get((row.agent_name, status))
        count, due, oldest = row.runs, row.due if status in _QUEUE else 0, row.oldest if status in _QUEUE else None
        if before is not None:
            count, due = count + before.count, due + before.due
            oldest = min((time for time in (oldest, before.oldest) if time is not None), default=None)
        key = row.agent_name, status
        merged[key] = RunCount(agent_name=row.agent_name, status=status, count=count, due=due, oldest=oldest)
    return [merged[key] for key in sorted(merged)]


def measure_queues(counts: Iterable[RunCount], now: datetime) -> dict[str, tuple[int, float]]:
    """Return by agent: the runs that wait for a worker, and how many seconds the oldest has waited."""
    queues: dict[str, tuple[int, float]] = {}
    for each in counts:
        due, age = queues.get(each.agent_name, (0, 0.0))
        own = 0.0 if each.oldest is None else (now - each.oldest).total_seconds()
        queues[each.agent_name] = due + each.due, max(age, own)
    return queues
