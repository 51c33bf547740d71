"""Stores that break the contract of drafts."""

from datetime import timedelta

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.record import Pending, RunStatus
from holdfast.checkpoint.workers import Claim


class KeepsTheFirstDraft(BrokenStore):
    red = ("test_the_newest_draft_is_read",)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        if draft is None or await self.read_draft(claim.run_id) is None:
            await super().put_draft(claim, draft)


class NeverDropsADraft(BrokenStore):
    red = ("test_a_dropped_draft_is_gone",)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        if draft is not None:
            await super().put_draft(claim, draft)


class CountsADraftAsAWrite(BrokenStore):
    red = ("test_a_draft_changes_nothing_else",)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await super().put_draft(claim, draft)
        self._runs[claim.run_id].updated_at = self._clock.now()


class ShowsTheDraftOfAnyClaim(BrokenStore):
    red = ("test_a_draft_of_an_earlier_claim_is_void",)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        run = self._runs.get(run_id)
        running = run is not None and run.status is RunStatus.RUNNING
        return self._drafts[run_id][1] if running and run_id in self._drafts else None


class TakesDraftsOfAnyClaim(BrokenStore):
    red = ("test_an_earlier_claim_puts_and_drops_no_draft",)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        if draft is None:
            self._drafts.pop(claim.run_id, None)
        elif claim.run_id in self._runs:
            self._drafts[claim.run_id] = self._runs[claim.run_id].token, draft


class ShowsDraftsOfReleasedRuns(BrokenStore):
    red = ("test_a_released_run_has_no_draft",)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        run = self._runs.get(run_id)
        token, draft = self._drafts.get(run_id, (0, None))
        return draft if run is not None and run.token == token else None


class KeepsDraftsByRunId(BrokenStore):
    """A later run with the same id shows the draft of the earlier one."""

    red = ("test_a_draft_ends_with_its_run",)

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        if draft is not None:
            self._drafts[claim.run_id] = claim.token, draft

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        return self._drafts.get(run_id, (0, None))[1] if run_id in self._runs else None


class NeverForgetsARequest(BrokenStore):
    red = ("test_drafts_are_requested_for_a_while",)

    async def pending(self, worker_id: str) -> Pending:
        pending = await super().pending(worker_id)
        return msgspec.structs.replace(pending, drafts=self._get_held(worker_id, self._draft_requests))


class ShowsRequestsToEveryWorker(BrokenStore):
    red = ("test_drafts_are_requested_of_the_worker_that_holds_the_run",)

    async def pending(self, worker_id: str) -> Pending:
        pending = await super().pending(worker_id)
        return msgspec.structs.replace(pending, drafts=list(self._draft_requests))


class BelievesTheLastRequest(BrokenStore):
    red = ("test_a_short_request_does_not_end_a_long_one",)

    def _request_drafts(self, run_id: str, keep_for: timedelta) -> None:
        self._draft_requests[run_id] = self._clock.now() + keep_for


class KeepsDraftsToItself(BrokenStore):
    red = ("test_other_stores_at_the_same_place_see_drafts_and_requests",)
