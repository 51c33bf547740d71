"""What a store knows of its fleet without reading records: its workers, and how many runs have each status."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from holdfast.checkpoint.claims import WorkerHeartbeat
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import DefinitionError

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


@runtime_checkable
class SupportsFleetView(Protocol):
    """A store that knows its workers and counts its runs. Not every store has to: its records are read instead."""

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        """Return the registered workers, ordered by id. A dead one is in the list until the store forgets it."""
        ...

    async def count_by_status(self, limit: int) -> Mapping[RunStatus, int]:
        """Count the runs of each status, up to `limit` of each. Statuses without runs may be missing.

        A running run whose owner is dead counts as interrupted.
        """
        ...

    async def count_runs(self) -> Sequence[RunCount]:
        """Count the runs by agent and status."""
        ...


async def list_workers(store: RunStore) -> Sequence[WorkerHeartbeat] | None:
    """Return the registered workers of a store, ordered by id. `None` if the store does not list them."""
    if not isinstance(store, SupportsFleetView):
        return None
    try:
        return await store.list_workers()
    except DefinitionError:  # it wraps a store that does not
        return None


async def count_by_status(store: RunStore, limit: int) -> Mapping[RunStatus, int] | None:
    """Count the runs of each status, up to `limit` of each. `None` if the store cannot."""
    if not isinstance(store, SupportsFleetView):
        return None
    try:
        return await store.count_by_status(limit)
    except DefinitionError:  # it wraps a store that cannot
        return None


async def count_runs(store: RunStore) -> Sequence[RunCount]:
    """Count the runs of a store by agent and status. One without `SupportsFleetView` is read as a whole."""
    if isinstance(store, SupportsFleetView):
        return await store.count_runs()
    return await count_by_listing(store, datetime.now(UTC))


async def count_by_listing(store: RunStore, now: datetime) -> list[RunCount]:
    """Count the runs of a store by reading all records."""
    rows = list[CountedRow]()
    async for record in store.list_runs():
        due = record.not_before <= now
        oldest = record.updated_at if due else None
        rows.append(CountedRow(record.agent_name, record.status, record.owner_alive, 1, int(due), oldest))
    return merge_rows(rows)


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
