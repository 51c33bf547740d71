"""Stores that break the contract of claims, fencing and workers."""

from collections.abc import Collection, Sequence

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import ClaimLost, RunNotFound
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunStatus
from holdfast.checkpoint.workers import Claim, WorkerIdentity
from holdfast.stores.memory_run import MemoryRun


class ForgetsTheOwner(BrokenStore):
    red = ("test_a_queued_run_is_claimed",)

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        claim = super()._claim_run(run, worker_id)
        run.owner = None
        return claim


class ParksReleasedRuns(BrokenStore):
    """A released run is never claimed again."""

    red = ("test_a_released_run_is_claimed_again", "test_a_release_without_options_changes_only_the_status")

    async def release(self, claim: Claim, release: Release) -> None:
        if release.status is RunStatus.INTERRUPTED:
            release = msgspec.structs.replace(release, status=RunStatus.PARKED)
        await super().release(claim, release)


class CountsNoStrikes(BrokenStore):
    red = ("test_a_claim_that_finished_no_step_is_a_strike",)

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        run.strikes = 0
        return super()._claim_run(run, worker_id)


class KeepsTheBackoff(BrokenStore):
    red = ("test_a_finished_step_ends_the_backoff",)

    async def append(self, claim: Claim, write: Append) -> None:
        waiting = self._get_claimed_run(claim).not_before
        await super().append(claim, write)
        self._get_claimed_run(claim).not_before = waiting


class ClaimsBusyRuns(BrokenStore):
    red = ("test_of_many_claimers_one_wins", "test_a_live_workers_run_is_busy_and_is_left_alone")

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        return await super().claim(run_id, worker_id, statuses=statuses, steal=True, within_limits=within_limits)


class NeverSteals(BrokenStore):
    red = ("test_a_steal_takes_the_run_from_a_live_owner",)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        return await super().claim(run_id, worker_id, statuses=statuses)


class ClaimsInAnyStatus(BrokenStore):
    red = ("test_a_run_in_a_status_not_asked_for_is_refused", "test_a_status_left_out_is_refused")

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        return await super().claim(run_id, worker_id, statuses=set(RunStatus), steal=steal, within_limits=within_limits)


class ClaimsInTheUsualStatusesOnly(BrokenStore):
    red = ("test_a_run_in_a_status_asked_for_is_claimed",)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        return await super().claim(run_id, worker_id, steal=steal, within_limits=within_limits)


class ClaimsUnknownRuns(BrokenStore):
    red = ("test_an_unknown_run_cannot_be_claimed",)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        try:
            return await super().claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)
        except RunNotFound:
            return Claim(run_id=run_id, worker_id=worker_id, token=self._token, strikes=1)


class StartsNoBackoff(BrokenStore):
    red = ("test_a_claim_starts_the_backoff", "test_the_backoff_between_strikes_holds_when_the_owner_dies")

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        claim = super()._claim_run(run, worker_id)
        run.not_before = self._clock.now()
        return claim


class ReadsTheTokenAgain(BrokenStore):
    """Reads the newest token before each write and writes under it."""

    red = ("test_a_superseded_claim_writes_nothing", "test_an_old_claim_does_not_fit_a_new_run_of_the_same_id")

    async def append(self, claim: Claim, write: Append) -> None:
        token = self._runs[claim.run_id].token if claim.run_id in self._runs else claim.token
        await super().append(msgspec.structs.replace(claim, token=token), write)


class ReleasesUnderAnyClaim(BrokenStore):
    red = ("test_a_superseded_claim_releases_nothing",)

    async def release(self, claim: Claim, release: Release) -> None:
        token = self._runs[claim.run_id].token if claim.run_id in self._runs else claim.token
        await super().release(msgspec.structs.replace(claim, token=token), release)


class RemovesUnderAnyClaim(BrokenStore):
    red = ("test_a_superseded_claim_removes_nothing",)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        if claim is None:
            await super().remove(run_id, erase=erase)
        else:
            self._remove_tree(run_id)


class WritesAfterTheRelease(BrokenStore):
    """A late save changes a terminal run."""

    red = ("test_a_released_claim_writes_nothing",)

    def _get_claimed_run(self, claim: Claim) -> MemoryRun:
        run = self._runs.get(claim.run_id)
        if run is None or run.token != claim.token:
            raise ClaimLost(claim.run_id, claim.token, None)
        return run


class CreatesRemovedRunsAgain(BrokenStore):
    red = ("test_a_claim_on_a_removed_run_writes_nothing",)

    async def append(self, claim: Claim, write: Append) -> None:
        if claim.run_id not in self._runs:
            await self.create(NewRun(run_id=claim.run_id, agent_name="", info=b"", progress=b"", entries=()))
        else:
            await super().append(claim, write)


class CountsTokensPerRun(BrokenStore):
    red = (
        "test_tokens_only_grow_also_over_removal_and_new_creation",
        "test_an_old_claim_does_not_fit_a_new_run_of_the_same_id",
        "test_any_sequence_of_calls_matches_the_model",
    )

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        self._token = run.token
        return super()._claim_run(run, worker_id)


class KeepsDeregisteredWorkers(BrokenStore):
    red = (
        "test_a_deregistered_workers_runs_are_interrupted",
        "test_runs_without_a_live_worker_are_listed_as_interrupted",
        "test_interrupted_runs_are_claimed",
    )

    async def deregister_worker(self, worker_id: str) -> None:
        self._check_open()


class DeregistersAllWorkers(BrokenStore):
    red = ("test_deregistering_an_unknown_worker_is_fine",)

    async def deregister_worker(self, worker_id: str) -> None:
        await super().deregister_worker(worker_id)
        self._workers.clear()


class KeepsTheFirstAgents(BrokenStore):
    red = ("test_a_worker_is_listed_with_the_agents_that_it_registered_last",)

    async def register_worker(self, worker: WorkerIdentity) -> None:
        self._check_open()
        self._workers.setdefault(worker.worker_id, worker)


class HasOneRunPerWorker(BrokenStore):
    """Each worker has one lease, which moves to its newest run."""

    red = ("test_one_worker_holds_many_runs",)

    def _has_live_owner(self, run: MemoryRun) -> bool:
        newest = max((other.token for other in self._runs.values() if other.owner == run.owner), default=0)
        return super()._has_live_owner(run) and run.token == newest


class ForgetsWhoDied(BrokenStore):
    red = ("test_a_claim_names_the_worker_that_died",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims = await super().claim_next(worker_id, agents=agents, limit=limit)
        return [msgspec.structs.replace(claim, taken_from=None) for claim in claims]
