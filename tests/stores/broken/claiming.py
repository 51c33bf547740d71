"""Stores that break what is said about claims, fences and workers."""

from collections.abc import Collection

import msgspec
from tests.stores.broken.fragile import Fragile

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import ClaimLost, RunNotFound
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, Status
from holdfast.checkpoint.record import Ending, NewRun
from holdfast.checkpoint.stores.memory import _Run


class ForgetsTheOwner(Fragile):
    red = ("test_a_queued_run_is_claimed",)

    def _take(self, run: _Run, worker_id: str) -> Claim:
        claim = super()._take(run, worker_id)
        run.owner = None
        return claim


class ReleasesForGood(Fragile):
    """Nobody looks at what was released: it is invisible for ever."""

    red = ("test_a_released_run_is_claimed_again", "test_an_ending_that_says_little_changes_little")

    async def settle(self, claim: Claim, ending: Ending) -> None:
        if ending.status is Status.INTERRUPTED:
            ending = msgspec.structs.replace(ending, status=Status.PARKED)
        await super().settle(claim, ending)


class CountsNoStrikes(Fragile):
    red = ("test_a_claim_that_finished_no_step_is_a_strike",)

    def _take(self, run: _Run, worker_id: str) -> Claim:
        run.strikes = 0
        return super()._take(run, worker_id)


class KeepsTheBackoff(Fragile):
    red = ("test_a_finished_step_ends_the_backoff",)

    async def append(self, claim: Claim, write: Write) -> None:
        waiting = self._held(claim).not_before
        await super().append(claim, write)
        self._held(claim).not_before = waiting


class GivesARunToMany(Fragile):
    red = ("test_of_many_claimers_one_wins", "test_a_live_workers_run_is_busy_and_is_left_alone")

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        return await super().claim(run_id, worker_id, statuses=statuses, steal=True)


class NeverSteals(Fragile):
    red = ("test_a_steal_takes_the_run_from_a_live_owner",)

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        return await super().claim(run_id, worker_id, statuses=statuses)


class ClaimsInAnyStatus(Fragile):
    red = ("test_a_run_in_a_status_not_asked_for_is_refused", "test_a_status_left_out_is_refused")

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        return await super().claim(run_id, worker_id, statuses=set(Status), steal=steal)


class ClaimsInTheUsualStatusesOnly(Fragile):
    red = ("test_a_run_in_a_status_asked_for_is_claimed",)

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        return await super().claim(run_id, worker_id, steal=steal)


class ClaimsWhatIsNotThere(Fragile):
    red = ("test_a_run_that_never_was_cannot_be_claimed",)

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        try:
            return await super().claim(run_id, worker_id, statuses=statuses, steal=steal)
        except RunNotFound:
            return Claim(run_id=run_id, worker_id=worker_id, token=self._token, strikes=1)


class StartsNoBackoff(Fragile):
    red = ("test_a_claim_starts_the_backoff", "test_the_backoff_between_strikes_holds_when_the_owner_dies")

    def _take(self, run: _Run, worker_id: str) -> Claim:
        claim = super()._take(run, worker_id)
        run.not_before = self._clock.now()
        return claim


class ReadsTheTokenAnew(Fragile):
    """Before each write it asks which claim is valid now, and writes under that one."""

    red = ("test_a_superseded_claim_writes_nothing", "test_an_old_claim_does_not_fit_a_new_run_of_the_same_id")

    async def append(self, claim: Claim, write: Write) -> None:
        token = self._runs[claim.run_id].token if claim.run_id in self._runs else claim.token
        await super().append(msgspec.structs.replace(claim, token=token), write)


class SettlesUnderAnyClaim(Fragile):
    red = ("test_a_superseded_claim_settles_nothing",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        token = self._runs[claim.run_id].token if claim.run_id in self._runs else claim.token
        await super().settle(msgspec.structs.replace(claim, token=token), ending)


class RemovesUnderAnyClaim(Fragile):
    red = ("test_a_superseded_claim_removes_nothing",)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        if claim is None:
            await super().remove(run_id)
        else:
            self._drop(run_id)


class WritesAfterTheEnd(Fragile):
    """A late save brings a run back that was over."""

    red = ("test_a_settled_claim_writes_nothing",)

    def _held(self, claim: Claim) -> _Run:
        run = self._runs.get(claim.run_id)
        if run is None or run.token != claim.token:
            raise ClaimLost(claim.run_id, claim.token, None)
        return run


class BringsRemovedRunsBack(Fragile):
    red = ("test_a_claim_on_a_removed_run_writes_nothing",)

    async def append(self, claim: Claim, write: Write) -> None:
        if claim.run_id not in self._runs:
            await self.create(NewRun(run_id=claim.run_id, agent_name="", meta=b"", progress=b"", entries=()))
        else:
            await super().append(claim, write)


class CountsTokensPerRun(Fragile):
    red = (
        "test_tokens_only_grow_also_over_removal_and_new_creation",
        "test_an_old_claim_does_not_fit_a_new_run_of_the_same_id",
        "test_any_sequence_of_calls_gives_what_a_plain_model_gives",
    )

    def _take(self, run: _Run, worker_id: str) -> Claim:
        self._token = run.token
        return super()._take(run, worker_id)


class KeepsTheDischarged(Fragile):
    red = (
        "test_a_discharged_workers_runs_are_interrupted",
        "test_what_no_live_worker_drives_is_listed_as_interrupted",
        "test_interrupted_runs_are_taken",
    )

    async def discharge(self, worker_id: str) -> None:
        self._check_open()


class DischargesEverybody(Fragile):
    red = ("test_discharging_an_unknown_worker_is_fine",)

    async def discharge(self, worker_id: str) -> None:
        await super().discharge(worker_id)
        self._workers.clear()


class HasOneRunPerWorker(Fragile):
    """One lease per worker, and a new run takes it from the one before."""

    red = ("test_one_worker_holds_many_runs",)

    def _driven(self, run: _Run) -> bool:
        newest = max((other.token for other in self._runs.values() if other.owner == run.owner), default=0)
        return super()._driven(run) and run.token == newest
