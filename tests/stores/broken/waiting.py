"""Stores that break the contract of waiting runs and of later starts."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Mail, NewRun, Receipt, Release, RunStatus
from holdfast.checkpoint.workers import Claim
from holdfast.stores.memory_run import MemoryRun


class ClaimsWaitingRuns(BrokenStore):
    red = ("test_a_waiting_run_is_left_alone",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        yield from super()._iter_claimable(agents, now)
        yield from (run for run in self._runs.values() if run.status is RunStatus.WAITING)


class ClaimsWaitingRunsById(BrokenStore):
    red = ("test_a_waiting_run_is_left_alone",)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        return await super().claim(
            run_id, worker_id, statuses={*statuses, RunStatus.WAITING}, steal=steal, within_limits=within_limits
        )


class WakesOnAnyMail(BrokenStore):
    red = ("test_a_wait_without_mail_or_time_lasts", "test_mail_of_other_topics_does_not_wake_the_run")

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = await super().post(run_id, mail)
        if self._runs[run_id].status is RunStatus.WAITING:
            self._runs[run_id].status = RunStatus.INTERRUPTED
        return receipt


class WakesOnKnownMail(BrokenStore):
    red = ("test_mail_that_was_posted_before_does_not_wake_the_run",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = await super().post(run_id, mail)
        run = self._runs[run_id]
        if run.status is RunStatus.WAITING and mail.topic in run.wake_on:
            run.status = RunStatus.INTERRUPTED
        return receipt


class NeverWakes(BrokenStore):
    red = (
        "test_mail_of_an_awaited_topic_wakes_the_run",
        "test_only_the_run_that_was_sent_mail_is_woken",
    )

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        self._runs[claim.run_id].wake_on = ()


class WakesWithABackoff(BrokenStore):
    red = ("test_mail_of_an_awaited_topic_wakes_the_run",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        not_before = self._get_run(run_id).not_before
        receipt = await super().post(run_id, mail)
        self._runs[run_id].not_before = not_before
        return receipt


class KeepsTheReasonOfAWaitThatEnded(BrokenStore):
    red = ("test_mail_of_an_awaited_topic_wakes_the_run",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        reason = self._get_run(run_id).reason
        receipt = await super().post(run_id, mail)
        self._runs[run_id].reason = reason
        return receipt


class WakesByPrefix(BrokenStore):
    red = ("test_mail_of_other_topics_does_not_wake_the_run",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = await super().post(run_id, mail)
        run = self._runs[run_id]
        if run.status is RunStatus.WAITING and mail.topic.startswith(tuple(run.wake_on)):
            run.status = RunStatus.INTERRUPTED
        return receipt


class WakesAllRuns(BrokenStore):
    red = ("test_only_the_run_that_was_sent_mail_is_woken",)

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = await super().post(run_id, mail)
        for run in self._runs.values():
            if run.status is RunStatus.WAITING and mail.topic in run.wake_on:
                run.status = RunStatus.INTERRUPTED
        return receipt


class KeepsTheWait(BrokenStore):
    """A claim leaves the topics and the time of the wait."""

    red = ("test_a_claim_ends_the_wait", "test_a_run_whose_wake_at_has_passed_is_claimable")

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        wait = run.wake_at, run.wake_on
        claim = super()._claim_run(run, worker_id)
        run.wake_at, run.wake_on = wait
        return claim


class AddsTheNewWaitToTheOld(BrokenStore):
    red = ("test_a_new_wait_replaces_the_old",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._topics: dict[str, list[str]] = {}

    async def release(self, claim: Claim, release: Release) -> None:
        topics = self._topics.setdefault(claim.run_id, [])
        topics += release.wake_on
        await super().release(claim, msgspec.structs.replace(release, wake_on=topics))


class WaitsForOneThingOnly(BrokenStore):
    """A run that waits for mail forgets the time at which it would be woken."""

    red = ("test_a_claim_without_effect_restores_the_wait",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, wake_at=None) if release.wake_on else release)


class HasNoTimers(BrokenStore):
    red = ("test_a_run_whose_wake_at_has_passed_is_claimable", "test_a_run_is_claimed_when_its_wake_at_is_reached")

    def _is_awake(self, run: MemoryRun) -> bool:
        return False


class WakesTooEarly(BrokenStore):
    """Compares the wake-up time in whole seconds."""

    red = ("test_a_run_is_claimed_when_its_wake_at_is_reached",)

    def _is_awake(self, run: MemoryRun) -> bool:
        return run.wake_at is not None and run.wake_at - self._clock.now() < timedelta(seconds=1)


class ClaimsWokenRunsFirst(BrokenStore):
    """Runs that a time has woken are claimed before all others, whatever their caller."""

    red = ("test_a_woken_run_waits_its_turn_among_its_callers_runs",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        awake = [run for run in self._runs.values() if self._is_awake(run)][:limit]
        claims = [self._claim_run(run, worker_id) for run in awake]
        return [*claims, *await super().claim_next(worker_id, agents=agents, limit=limit - len(claims))]


class ClaimsWokenRunsOfAnyAgent(BrokenStore):
    red = ("test_only_waiting_runs_of_the_given_agents_are_claimed",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        yield from super()._iter_claimable(agents, now)
        yield from (run for run in self._runs.values() if self._is_awake(run) and run.new.agent_name not in agents)


class ClaimsWokenChildren(BrokenStore):
    red = ("test_a_waiting_child_is_left_to_its_parent",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        yield from super()._iter_claimable(agents, now)
        yield from (run for run in self._runs.values() if self._is_awake(run) and run.new.parent_run_id)


class WakesRunsToBeCancelled(BrokenStore):
    red = ("test_a_cancel_request_leaves_the_wait",)

    async def request_cancel(self, run_id: str) -> None:
        await super().request_cancel(run_id)
        if self._runs[run_id].status is RunStatus.WAITING:
            self._runs[run_id].status = RunStatus.INTERRUPTED


class LetsRunsToBeCancelledWait(BrokenStore):
    red = ("test_a_run_whose_cancel_was_requested_does_not_wait",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        run = self._runs[claim.run_id]
        if release.status is RunStatus.WAITING:
            run.status, run.wake_at, run.wake_on = release.status, release.wake_at, tuple(release.wake_on)


class ParksRunsToBeCancelled(BrokenStore):
    red = ("test_a_run_whose_cancel_was_requested_is_not_parked",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, despite_cancel=True))


class ParksNoRunToBeCancelled(BrokenStore):
    red = ("test_a_run_whose_cancel_needs_a_person_is_parked",)

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, msgspec.structs.replace(release, despite_cancel=False))


class EndsRunsToBeCancelled(BrokenStore):
    red = ("test_a_run_whose_cancel_was_requested_is_not_done",)

    async def release(self, claim: Claim, release: Release) -> None:
        if release.status is RunStatus.DONE:
            self._runs[claim.run_id].cancel_requested = False
        await super().release(claim, release)


class StartsEveryRunAtOnce(BrokenStore):
    red = (
        "test_a_run_with_a_later_start_is_left_alone_until_then",
        "test_a_run_is_claimed_when_its_start_is_reached",
    )

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        return await super().create(msgspec.structs.replace(run, not_before=None), worker_id=worker_id)
