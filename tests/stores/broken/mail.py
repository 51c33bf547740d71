"""Stores that break the contract of mail."""

import asyncio
import unicodedata
from typing import Any

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import ClaimLost, RunNotFound, StoreError, UnreadMail
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import TERMINAL_STATUSES, Mail, NewRun, Pending, Receipt, Release, RunStatus, StoredRun
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import Claim
from holdfast.stores.memory_run import MemoryRun


class ReadsTheNewestMailFirst(BrokenStore):
    red = ("test_posted_mail_is_unread_in_the_order_of_posting",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await super().load(run_id, after=after)
        return msgspec.structs.replace(stored, mail=stored.mail[::-1])


class LoadsMailWithEveryRecord(BrokenStore):
    """Each message costs as much as the mail before it."""

    red = ("test_a_record_is_loaded_without_the_mail",)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        return await super().load(run_id, after=min(after, END))


class BelievesTheSendersClock(BrokenStore):
    red = ("test_the_store_sets_the_time_of_posting",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = await super().post(run_id, mail)
        if mail.posted_at is not None:
            self._runs[run_id].mail[mail.mail_id] = mail
        return receipt


class WakesParkedRuns(BrokenStore):
    red = ("test_a_run_in_any_status_but_a_terminal_one_takes_mail",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = await super().post(run_id, mail)
        if self._runs[run_id].status is RunStatus.PARKED:
            self._runs[run_id].status = RunStatus.INTERRUPTED
        return receipt


class TakesMailAfterTheEnd(BrokenStore):
    """The mail is accepted and never read."""

    red = ("test_a_terminal_run_refuses_mail",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        run = self._get_run(run_id)
        status, run.status = run.status, RunStatus.PARKED
        receipt = run.post(mail, self._clock.now())
        run.status = status
        return receipt


class AcceptsMailForUnknownRuns(BrokenStore):
    red = ("test_an_unknown_run_has_no_mail",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        try:
            return await super().post(run_id, mail)
        except RunNotFound:
            return Receipt(is_new=True, mail=mail)


class ReplacesMailOfAKnownId(BrokenStore):
    red = ("test_mail_of_a_known_id_changes_nothing", "test_concurrent_posts_are_all_kept_once")

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        if run_id in self._runs:
            self._runs[run_id].mail.pop(mail.mail_id, None)
        return await super().post(run_id, mail)


class ForgetsConsumedMail(BrokenStore):
    """Mail that is posted again is applied again."""

    red = (
        "test_mail_of_a_known_id_changes_nothing",
        "test_mail_of_a_known_id_is_accepted_after_the_end",
        "test_mail_that_was_posted_before_does_not_wake_the_run",
    )

    def _note_unread(self, run_id: str) -> None:
        super()._note_unread(run_id)
        run = self._runs[run_id]
        run.mail = {mail_id: mail for mail_id, mail in run.mail.items() if mail_id in run.unread}


class RefusesKnownMailAfterTheEnd(BrokenStore):
    """A sender that repeats its post cannot find out that the first was accepted."""

    red = ("test_mail_of_a_known_id_is_accepted_after_the_end",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        run = self._get_run(run_id)
        known = {} if run.status in TERMINAL_STATUSES else run.mail
        run.mail, kept = known, run.mail
        try:
            return await super().post(run_id, mail)
        finally:
            run.mail = run.mail or kept


class HasOneMailboxForAllRuns(BrokenStore):
    red = ("test_the_mail_of_two_runs_is_separate",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._posted: set[str] = set()

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        if mail.mail_id in self._posted:
            return Receipt(is_new=False, mail=mail)
        self._posted.add(mail.mail_id)
        return await super().post(run_id, mail)


class NormalizesMailIds(BrokenStore):
    red = ("test_every_mail_id_and_topic_is_kept_as_it_is",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        mail_id = unicodedata.normalize("NFC", mail.mail_id).strip()
        return await super().post(run_id, msgspec.structs.replace(mail, mail_id=mail_id))


class PostsAfterAnAwait(BrokenStore):
    """Between the check of the id and the write, another post has written the same id."""

    red = ("test_concurrent_posts_are_all_kept_once",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        is_new = mail.mail_id not in self._get_run(run_id).mail
        await asyncio.sleep(0)
        if is_new:
            self._get_run(run_id).mail.pop(mail.mail_id, None)
        return await super().post(run_id, mail)


class KeepsTheMailOfARemovedRun(BrokenStore):
    red = ("test_mail_is_removed_with_its_run",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._old: dict[str, dict[str, Mail]] = {}

    def _remove_tree(self, run_id: str) -> None:
        self._old[run_id] = self._runs[run_id].mail
        super()._remove_tree(run_id)

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        claim = await super().create(run, worker_id=worker_id)
        self._runs[run.run_id].mail = self._old.get(run.run_id, {})
        return claim


class ConsumesNothingWithARewrite(BrokenStore):
    red = ("test_an_append_consumes_the_mail_it_names",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, consumed=()) if write.rewrite else write)


class ConsumesNothingWithARelease(BrokenStore):
    red = ("test_a_release_consumes_the_mail_it_names",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, consumed=()))


class ConsumesWhatItKnows(BrokenStore):
    """Mail is applied twice, because a write that consumes it again is accepted."""

    red = ("test_mail_that_is_not_unread_is_not_consumed",)

    async def append(self, claim: Claim, write: Append) -> None:
        known = [mail_id for mail_id in write.consumed if mail_id in self._get_claimed_run(claim).unread]
        await super().append(claim, msgspec.structs.replace(write, consumed=known))


class ConsumesBeforeItChecks(BrokenStore):
    red = ("test_mail_that_is_not_unread_is_not_consumed", "test_a_refused_write_consumes_nothing")

    async def append(self, claim: Claim, write: Append) -> None:
        run = self._get_claimed_run(claim)
        for mail_id in write.consumed:
            run.consume([mail_id])
        await super().append(claim, msgspec.structs.replace(write, consumed=()))


class ConsumesUnderAnyClaim(BrokenStore):
    red = ("test_a_stale_claim_consumes_nothing",)

    async def append(self, claim: Claim, write: Append) -> None:
        try:
            await super().append(claim, write)
        except ClaimLost:
            self._runs[claim.run_id].consume(write.consumed)
            raise


class DropsMailAtAClaim(BrokenStore):
    red = ("test_mail_outlasts_interruption_and_takeover",)

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        run.unread.clear()
        return super()._claim_run(run, worker_id)


class ReleasesRunsWithUnreadMail(BrokenStore):
    """The mail was accepted while the run ended, and is never read."""

    red = ("test_a_release_is_refused_while_its_topics_are_unread",)

    async def release(self, claim: Claim, release: Release) -> None:
        if release.status is not RunStatus.WAITING:
            release = msgspec.structs.replace(release, wake_on=())
        await super().release(claim, release)


class ExpiresWaitsThatHaveAnAnswer(BrokenStore):
    red = ("test_an_append_is_refused_while_its_topics_are_unread",)

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, msgspec.structs.replace(write, unless_mail=()))


class ConsumesBeforeItFindsUnreadMail(BrokenStore):
    red = ("test_a_release_is_refused_while_its_topics_are_unread",)

    async def release(self, claim: Claim, release: Release) -> None:
        try:
            await super().release(claim, release)
        except UnreadMail:
            self._runs[claim.run_id].consume(release.consumed)
            raise


class EndsTheClaimOfARefusedRelease(BrokenStore):
    red = ("test_a_release_is_refused_while_its_topics_are_unread",)

    async def release(self, claim: Claim, release: Release) -> None:
        try:
            await super().release(claim, release)
        except UnreadMail:
            self._runs[claim.run_id].status = RunStatus.INTERRUPTED
            raise


class ReportsMailToAllWorkers(BrokenStore):
    red = ("test_a_worker_finds_the_runs_it_holds_that_have_unread_mail", "test_pending_mail_goes_with_the_claim")

    async def pending(self, worker_id: str) -> Pending:
        return msgspec.structs.replace(await super().pending(worker_id), mail=list(self._unread))


class ReportsMailUntilTheRelease(BrokenStore):
    red = ("test_a_worker_finds_the_runs_it_holds_that_have_unread_mail", "test_pending_mail_goes_with_the_claim")

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, write)
        if write.consumed:
            self._unread[claim.run_id] = None


class ReportsUnknownMailAsALostClaim(BrokenStore):
    red = ("test_mail_that_is_not_unread_is_not_consumed",)

    async def append(self, claim: Claim, write: Append) -> None:
        try:
            await super().append(claim, write)
        except StoreError as exc:
            raise ClaimLost(claim.run_id, claim.token, None) from exc
