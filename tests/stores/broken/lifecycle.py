"""Stores that break what is said about signals, about opening and closing, and about what is handed out."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.record import NewRun, Release, RunStatus, StoredRun


class TellsCancelsToEverybody(BrokenStore):
    red = ("test_a_cancel_reaches_the_worker_that_holds_the_run",)

    async def pending_cancellations(self, worker_id: str) -> Sequence[str]:
        self._check_open()
        return list(self._cancel_requested)


class ForgetsTheCancelAtARelease(BrokenStore):
    red = ("test_a_cancel_stays_asked_over_owners",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        self._runs[claim.run_id].cancel_requested = False
        self._cancel_requested.discard(claim.run_id)


class RemembersTheCancelForEver(BrokenStore):
    red = ("test_a_cancel_is_forgotten_once_the_run_is_over",)

    async def release(self, claim: Claim, release: Release) -> None:
        asked = claim.run_id in self._cancel_requested
        await super().release(claim, release)
        if asked:
            self._runs[claim.run_id].cancel_requested = True
            self._cancel_requested.add(claim.run_id)


class ReleasesWhatIsToBeCancelled(BrokenStore):
    red = ("test_asking_changes_nothing_else",)

    async def request_cancel(self, run_id: str) -> None:
        await super().request_cancel(run_id)
        self._runs[run_id].status = RunStatus.INTERRUPTED


class CancelsWhatIsNotThere(BrokenStore):
    red = ("test_a_run_that_never_was_cannot_be_cancelled",)

    async def request_cancel(self, run_id: str) -> None:
        self._check_open()
        if run_id in self._runs:
            await super().request_cancel(run_id)


class NeverWakesAnybody(BrokenStore):
    red = ("test_who_waits_for_a_change_is_woken",)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        self._check_open()
        await asyncio.sleep(min(0.01, timeout.total_seconds()))
        return False


class WakesOneAtATime(BrokenStore):
    red = ("test_all_who_wait_are_woken",)

    _busy = False

    async def wait_for_change(self, timeout: timedelta) -> bool:
        if self._busy:
            await asyncio.sleep(timeout.total_seconds())
            return False
        self._busy = True
        try:
            return await super().wait_for_change(timeout)
        finally:
            self._busy = False


class CriesWolf(BrokenStore):
    red = ("test_without_a_change_the_wait_ends_by_itself",)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        await asyncio.sleep(0)
        return True


class IsDeafAfterACancelledWait(BrokenStore):
    red = ("test_a_wait_that_is_given_up_harms_nobody",)

    _deaf = False

    async def wait_for_change(self, timeout: timedelta) -> bool:
        try:
            return False if self._deaf else await super().wait_for_change(timeout)
        except asyncio.CancelledError:
            self._deaf = True
            raise


class WorksWhenItIsClosed(BrokenStore):
    red = ("test_a_closed_store_does_nothing_and_says_so", "test_a_store_that_was_never_opened_says_so")

    def _check_open(self) -> None:
        pass


class ClosesOnce(BrokenStore):
    red = ("test_a_store_may_be_closed_again",)

    _closed = False

    async def close(self) -> None:
        if self._closed:
            raise StoreClosed("closed already")
        self._closed = True
        await super().close()


class ClosesOnlyWhatWasOpened(BrokenStore):
    red = ("test_a_store_that_was_never_opened_may_be_closed",)

    _opened = False

    async def open(self) -> None:
        self._opened = True
        await super().open()

    async def close(self) -> None:
        if not self._opened:
            raise StoreClosed("never opened")
        await super().close()


class ForgetsWhoWaits(BrokenStore):
    red = ("test_closing_ends_the_waits_for_a_change",)

    async def close(self) -> None:
        self._open = False


class KeepsTheCallersList(BrokenStore):
    red = ("test_what_was_handed_in_may_be_changed_afterwards",)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        claim = await super().create(run, worker_id=worker_id)
        assert isinstance(run.entries, list)
        self._runs[run.run_id].journal = run.entries
        return claim


class HandsOutItsJournal(BrokenStore):
    red = (
        "test_what_was_handed_out_may_be_changed_afterwards",
        "test_what_was_handed_out_stays_as_it_was",
    )

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        return msgspec.structs.replace(stored, entries=self._runs[run_id].journal)


class HandsOutBodiesThatCanBeChanged(BrokenStore):
    red = ("test_records_and_entries_cannot_be_changed",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        entries = [msgspec.structs.replace(entry, body=bytearray(entry.body)) for entry in stored.entries]
        return msgspec.structs.replace(stored, entries=entries)


class FoldsCase(BrokenStore):
    """As on a file system that does not tell `Run` from `run`."""

    red = ("test_every_legal_id_names_a_run_of_its_own",)

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        return await super().create(msgspec.structs.replace(run, run_id=run.run_id.lower()), worker_id=worker_id)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await super().load(run_id.lower(), after=after)
