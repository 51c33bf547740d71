"""Stores that break the contract of release, remove and purge."""

from contextlib import suppress
from typing import Any

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import RunBusy, RunEnded, RunExists
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.record import TERMINAL_STATUSES, NewRun, Release, RunStatus
from holdfast.checkpoint.workers import Claim
from holdfast.stores.memory_run import MemoryRun


class DropsTheLastEntries(BrokenStore):
    red = ("test_a_released_run_has_the_values_of_its_release",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, entries=()))


class DropsTheRetention(BrokenStore):
    red = ("test_a_released_run_has_the_values_of_its_release",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, retention=None))


class DropsTheDelay(BrokenStore):
    red = ("test_a_released_run_has_the_values_of_its_release",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, delay=type(release.delay)(0)))


class ClearsTheProgress(BrokenStore):
    red = ("test_a_release_without_options_changes_only_the_status",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, progress=release.progress or b""))


class ChangesARunItRefusesToRelease(BrokenStore):
    red = ("test_a_refused_release_leaves_the_claim_as_it_was",)

    async def release(self, claim: Claim, release: Release) -> None:
        self._get_claimed_run(claim).strikes = release.strikes
        await super().release(claim, release)


class NotifiesNoRun(BrokenStore):
    red = ("test_a_release_wakes_the_run_that_it_notifies",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, notify=None))


class NotifiesBeforeItReleases(BrokenStore):
    red = ("test_a_refused_release_notifies_no_run",)

    async def release(self, claim: Claim, release: Release) -> None:
        if (notice := release.notify) is not None and notice.run_id in self._runs:
            with suppress(RunEnded):
                await self.post(notice.run_id, notice.mail)
        await super().release(claim, msgspec.structs.replace(release, notify=None))


class RefusesToNotifyAnEndedRun(BrokenStore):
    red = ("test_a_release_that_notifies_an_ended_run_or_none_ends_the_claim",)

    async def release(self, claim: Claim, release: Release) -> None:
        if release.notify is not None:
            await self.load(release.notify.run_id)
        await super().release(claim, release)


class OffersFailedRuns(BrokenStore):
    red = ("test_a_terminal_or_parked_run_is_not_claimed_next",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        if release.status is RunStatus.FAILED:
            self._runs[claim.run_id].status = RunStatus.INTERRUPTED


class RemovesNothing(BrokenStore):
    red = ("test_a_removed_run_is_gone",)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        self._check_open()


class KeepsTheJournalOfARemovedRun(BrokenStore):
    """The journal of a removed run stays, and a new run of that id finds it."""

    red = ("test_a_new_run_of_a_removed_id_starts_with_nothing_of_the_old",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._old: dict[str, list[Entry]] = {}

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        journal = self._runs[run_id].journal if run_id in self._runs else []
        await super().remove(run_id, claim=claim, erase=erase)
        self._old[run_id] = journal

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        claim = await super().create(run, worker_id=worker_id)
        stored, old = self._runs[run.run_id], self._old.get(run.run_id, [])
        stored.journal[:0] = old
        stored.next_seq += len(old)
        return claim


class RemovesUnderAClaimOnly(BrokenStore):
    red = (
        "test_a_run_that_is_not_executed_is_removed_without_a_claim",
        "test_removing_an_unknown_run_is_fine",
    )

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        if claim is None:
            raise RunBusy(run_id, "a worker")
        await super().remove(run_id, claim=claim, erase=erase)


class RemovesExecutedRuns(BrokenStore):
    red = ("test_an_executed_run_is_not_removed_without_its_claim",)

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        if claim is None:
            self._remove_tree(run_id)
        await super().remove(run_id, claim=claim, erase=erase)


class LeavesTheChildren(BrokenStore):
    red = (
        "test_the_runs_a_removed_run_started_go_with_it",
        "test_the_runs_a_purged_run_started_go_with_it",
    )

    def _remove_tree(self, run_id: str) -> None:
        self._runs.pop(run_id, None)
        self._cancel_requested.pop(run_id, None)


class RemovesTheParentToo(BrokenStore):
    red = ("test_removing_a_child_leaves_its_parent",)

    def _remove_tree(self, run_id: str) -> None:
        run = self._runs.get(run_id)
        super()._remove_tree(run.new.parent_run_id or run_id if run else run_id)


class PurgesBeforeTheExpiry(BrokenStore):
    """A run disappears that a person may still resume."""

    red = ("test_only_terminal_expired_runs_are_purged",)

    async def purge(self, *, limit: int = 100) -> int:
        for run in self._runs.values():
            if run.status in TERMINAL_STATUSES and run.expires_at is not None:
                run.expires_at = self._clock.now()
        return await super().purge(limit=limit)


class PurgesChildrenOfInterruptedRuns(BrokenStore):
    """The parent starts its child a second time when it resumes."""

    red = ("test_a_child_is_kept_while_its_parent_may_resume",)

    def _is_needed_by_parent(self, run: MemoryRun) -> bool:
        return False


class KeepsOrphans(BrokenStore):
    red = ("test_a_child_is_purged_if_its_parent_is_not_in_the_store",)

    def _is_needed_by_parent(self, run: MemoryRun) -> bool:
        return run.new.parent_run_id is not None


class PurgesWithoutLimit(BrokenStore):
    red = ("test_a_purge_removes_no_more_than_its_limit",)

    async def purge(self, *, limit: int = 100) -> int:
        return await super().purge(limit=1000)


class ReservesPurgedIds(BrokenStore):
    red = ("test_a_purged_id_may_be_used_again",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._used: set[str] = set()

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        if run.run_id in self._used:
            raise RunExists(run.run_id)
        self._used.add(run.run_id)
        return await super().create(run, worker_id=worker_id)
