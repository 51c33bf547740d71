"""Stores that break the contract of priorities, keys and concurrency limits."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
from examples.snapshot_store import Contents
from tests.stores.broken.broken_store import BrokenStore
from tests.stores.broken.durability import BrokenSnapshotStore

from holdfast.checkpoint.record import NewRun, RunRecord, RunStatus
from holdfast.checkpoint.workers import Claim, ProcessIdentity
from holdfast.config import LimitKind
from holdfast.stores.memory_run import MemoryRun


class ForgetsPriorityAndKey(BrokenStore):
    red = ("test_a_run_keeps_its_priority_and_its_key",)

    def _make_record(self, run: MemoryRun) -> RunRecord:
        return msgspec.structs.replace(super()._make_record(run), priority=0, concurrency_key="")


class IgnoresPriorities(BrokenStore):
    red = (
        "test_a_higher_priority_comes_first",
        "test_a_higher_priority_comes_first_also_behind_many_callers_in_their_backoff",
        "test_a_priority_counts_for_interrupted_and_awakened_runs_too",
        "test_any_queue_is_drained_as_the_model_of_fairness_demands",
    )

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await super().create(msgspec.structs.replace(run, priority=0), worker_id=worker_id)


class WaitsForTheHighestPriority(BrokenStore):
    """Claims runs of the highest priority alone, also while none of them is due."""

    red = ("test_a_run_of_high_priority_that_is_not_due_blocks_no_other",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        highest = max((run.new.priority for run in self._runs.values()), default=0)
        claims = await super().claim_next(worker_id, agents=agents, limit=limit)
        return [claim for claim in claims if self._runs[claim.run_id].new.priority == highest]


class CountsNothing(BrokenStore):
    """Knows the limits, but takes every slot for free."""

    red = (
        "test_limits_are_listed_with_their_usage",
        "test_no_more_runs_of_a_key_are_claimed_than_its_limit",
        "test_a_slot_is_free_again_when_its_run_ends_waits_or_is_removed",
        "test_a_run_that_awakes_waits_for_a_slot",
        "test_a_run_created_for_a_worker_is_queued_if_its_limit_is_reached",
        "test_a_claim_within_the_limits_is_refused_when_one_is_reached",
        "test_a_persons_claim_ignores_the_limits_and_holds_a_slot",
        "test_a_run_with_a_parent_needs_no_slot",
        "test_of_many_claimers_each_slot_has_one",
        "test_any_queue_is_drained_as_the_model_of_fairness_demands",
    )

    def _iter_owned(self) -> Iterator[MemoryRun]:
        return iter(())


class LimitsKeysOnly(BrokenStore):
    red = ("test_no_more_runs_of_an_agent_are_claimed_than_its_limit", "test_both_limits_of_a_run_count")

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        if kind == "agent":
            return False
        return await super().set_limit(kind, name, max_runs, default=default)


class CountsDeadWorkers(BrokenStore):
    red = ("test_a_dead_worker_holds_no_slot",)

    def _iter_owned(self) -> Iterator[MemoryRun]:
        return (run for run in self._runs.values() if run.status is RunStatus.RUNNING)


class DefaultsReplaceEverything(BrokenStore):
    red = ("test_a_default_replaces_only_a_default",)

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        existed = await super().set_limit(kind, name, None)
        await super().set_limit(kind, name, max_runs, default=default)
        return existed


class NeverRemovesALimit(BrokenStore):
    red = ("test_a_removed_limit_limits_nothing",)

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        return max_runs is not None and await super().set_limit(kind, name, max_runs, default=default)


class GivesEachChildItsParentsSlot(BrokenStore):
    red = ("test_a_background_child_needs_a_slot",)

    def _has_slot(self, run: MemoryRun) -> bool:
        return run.new.parent_run_id is not None or super()._has_slot(run)


class StopsAtARunWithoutASlot(BrokenStore):
    """The first run whose limit is reached blocks all behind it."""

    red = (
        "test_runs_behind_many_whose_limit_is_reached_are_claimed",
        "test_any_queue_is_drained_as_the_model_of_fairness_demands",
    )

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        ready = list(self._iter_claimable(frozenset(agents), self._clock.now()))
        if ready and not self._has_slot(ready[0]):
            return []
        return await super().claim_next(worker_id, agents=agents, limit=limit)


class StopsRunsAboveTheLimit(BrokenStore):
    """A limit that is lowered interrupts the runs above it."""

    red = ("test_a_limit_below_what_runs_stops_nothing_and_starts_nothing",)

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        existed = await super().set_limit(kind, name, max_runs, default=default)
        running = [run for run in self._iter_owned() if run.new.concurrency_key == name]
        for run in running[max_runs:]:
            run.status = RunStatus.INTERRUPTED
        return existed


class ForgetsLimits(BrokenSnapshotStore):
    red = ("test_limits_survive_the_process",)

    def _read(self) -> Contents:
        contents = super()._read()
        contents.limits = []
        return contents


class AllowsOneMoreRun(BrokenSnapshotStore):
    red = ("test_processes_never_exceed_a_limit",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._raise_limits(1)
        claims = await super().claim_next(worker_id, agents=agents, limit=limit)
        self._raise_limits(-1)
        return claims

    def _raise_limits(self, by: int) -> None:
        with self._transaction() as contents:
            contents.limits = [
                (msgspec.structs.replace(known, max_runs=known.max_runs + by), is_default)
                for known, is_default in contents.limits
            ]


class KeepsTheSlotsOfKilledProcesses(BrokenSnapshotStore):
    red = ("test_a_killed_process_frees_its_slots",)

    def _is_alive(self, process: ProcessIdentity) -> bool:
        return True
