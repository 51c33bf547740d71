"""Stores that break what is said about endings, removal and purging."""

import msgspec
from tests.stores.broken.fragile import Fragile

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import RunBusy, RunExists
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.lifecycle import OVER, Status
from holdfast.checkpoint.record import Ending, NewRun
from holdfast.checkpoint.stores.memory import _Run


class LosesTheLastWords(Fragile):
    red = ("test_a_settled_run_is_what_its_ending_says",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await super().settle(claim, msgspec.structs.replace(ending, entries=()))


class KeepsNothingAside(Fragile):
    red = ("test_a_settled_run_is_what_its_ending_says",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await super().settle(claim, msgspec.structs.replace(ending, keep=None))


class DelaysNothing(Fragile):
    red = ("test_a_settled_run_is_what_its_ending_says",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await super().settle(claim, msgspec.structs.replace(ending, delay=type(ending.delay)(0)))


class EmptiesTheProgressAtTheEnd(Fragile):
    red = ("test_an_ending_that_says_little_changes_little",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await super().settle(claim, msgspec.structs.replace(ending, progress=ending.progress or b""))


class EndsWhatItRefusesToEnd(Fragile):
    red = ("test_a_refused_ending_leaves_the_claim_as_it_was",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        self._held(claim).strikes = ending.strikes
        await super().settle(claim, ending)


class OffersWhatFailed(Fragile):
    red = ("test_a_run_that_is_over_is_no_candidate",)

    async def settle(self, claim: Claim, ending: Ending) -> None:
        await super().settle(claim, ending)
        if ending.status is Status.FAILED:
            self._runs[claim.run_id].status = Status.INTERRUPTED


class RemovesNothing(Fragile):
    red = ("test_a_removed_run_is_gone",)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        self._check_open()


class RemembersWhatWasRemoved(Fragile):
    """The journal of a removed run stays, and a new run of that id finds it."""

    red = ("test_a_new_run_of_a_removed_id_starts_with_nothing_of_the_old",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._old: dict[str, list[Entry]] = {}

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        journal = self._runs[run_id].journal if run_id in self._runs else []
        await super().remove(run_id, claim=claim)
        self._old[run_id] = journal

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        claim = await super().create(run, worker_id=worker_id)
        stored, old = self._runs[run.run_id], self._old.get(run.run_id, [])
        stored.journal[:0] = old
        stored.next_seq += len(old)
        return claim


class RemovesUnderAClaimOnly(Fragile):
    red = (
        "test_a_run_nobody_drives_is_removed_without_a_claim",
        "test_removing_a_run_that_is_not_there_is_fine",
    )

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        if claim is None:
            raise RunBusy(run_id, "somebody")
        await super().remove(run_id, claim=claim)


class RemovesWhatIsDriven(Fragile):
    red = ("test_a_run_that_is_driven_is_not_removed_without_its_claim",)

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        if claim is None:
            self._drop(run_id)
        await super().remove(run_id, claim=claim)


class LeavesTheChildren(Fragile):
    red = (
        "test_the_runs_a_removed_run_started_go_with_it",
        "test_the_runs_a_purged_run_started_go_with_it",
    )

    def _drop(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._cancel_asked.discard(run_id)


class RemovesTheParentToo(Fragile):
    red = ("test_removing_a_child_leaves_its_parent",)

    def _drop(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        super()._drop(run.new.parent_run_id or run_id if run else run_id)


class PurgesWhatIsToBeKept(Fragile):
    """Retention collects what somebody still wants to resume by hand."""

    red = ("test_what_is_over_and_expired_is_purged_and_nothing_else",)

    async def purge(self, *, limit: int = 100) -> int:
        for run in self._runs.values():
            if run.status in OVER and run.expires_at is not None:
                run.expires_at = self._clock.now()
        return await super().purge(limit=limit)


class PurgesWhatAParentWaitsFor(Fragile):
    """A parent that was down for long starts its child a second time."""

    red = ("test_what_a_child_left_is_kept_while_its_parent_may_go_on",)

    def _awaited(self, run: _Run) -> bool:
        return False


class KeepsOrphansForEver(Fragile):
    red = ("test_what_a_child_left_is_purged_if_its_parent_is_not_there",)

    def _awaited(self, run: _Run) -> bool:
        return run.new.parent_run_id is not None


class PurgesWithoutLimit(Fragile):
    red = ("test_a_purge_removes_no_more_than_its_limit",)

    async def purge(self, *, limit: int = 100) -> int:
        return await super().purge(limit=1000)


class ReservesPurgedIds(Fragile):
    red = ("test_a_purged_id_may_be_used_again",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._used: set[str] = set()

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        if run.run_id in self._used:
            raise RunExists(run.run_id)
        self._used.add(run.run_id)
        return await super().create(run, worker_id=worker_id)
