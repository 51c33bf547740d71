"""Stores that break what is said about listings and about the next run to take."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.record import NewRun, Release, RunFilter, RunRecord, RunStatus
from holdfast.stores.memory import _Run


class ListsAGhost(BrokenStore):
    red = ("test_an_empty_store_lists_nothing",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        now = self._clock.now()
        ghost = NewRun(run_id="ghost", agent_name="", meta=b"", progress=b"", entries=())
        yield self._make_record(_Run(new=ghost, created_at=now, updated_at=now, not_before=now, progress=b""))
        async for record in super().list_runs(filter):
            yield record


class ListsByName(BrokenStore):
    red = ("test_runs_are_listed_oldest_first",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        found = [record async for record in super().list_runs(filter)]
        for record in sorted(found, key=lambda record: record.run_id):
            yield record


class ListsWithoutTheProgress(BrokenStore):
    red = ("test_a_listed_record_is_the_one_that_load_gives",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        async for record in super().list_runs(filter):
            yield msgspec.structs.replace(record, progress=b"")


class TakesTheFirstFilterOnly(BrokenStore):
    red = ("test_every_filter_that_is_set_has_to_fit",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        if filter is not None and filter.agent_name is not None:
            filter = RunFilter(agent_name=filter.agent_name)
        async for record in super().list_runs(filter):
            yield record


class ListsWhatWasLeftOnly(BrokenStore):
    """Runs whose owner died without a word are not among the interrupted."""

    red = ("test_what_no_live_worker_drives_is_listed_as_interrupted",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        async for record in super().list_runs(filter):
            if filter is None or not filter.interrupted or record.status is not RunStatus.RUNNING:
                yield record


class TripsOverChanges(BrokenStore):
    red = ("test_a_listing_goes_on_while_its_runs_change",)

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        self._check_open()
        for run in self._runs.values():
            yield self._make_record(run)


class IsLockedWhileItLists(BrokenStore):
    """A listing that is left early never lets go."""

    red = ("test_a_listing_may_be_left_early",)

    _listing = False

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        self._listing = True
        async for record in super().list_runs(filter):
            yield record
        self._listing = False

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        if self._listing:
            raise StoreUnavailable("a listing is under way")
        await super().remove(run_id, claim=claim)


class TakesTheQueuedOnly(BrokenStore):
    """A queue that never recovers anything."""

    red = ("test_interrupted_runs_are_taken",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[_Run]:
        return (run for run in super()._iter_claimable(agents, now) if run.status is RunStatus.QUEUED)


class TakesWhatIsDriven(BrokenStore):
    red = ("test_a_driven_run_is_not_taken",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[_Run]:
        return (run for run in self._runs.values() if run.new.agent_name in agents)


class TakesRunsOfAnyAgent(BrokenStore):
    red = ("test_only_runs_of_the_agents_asked_for_are_taken",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        every = {run.new.agent_name for run in self._runs.values()}
        return await super().claim_next(worker_id, agents=every, limit=limit)


class TakesWithoutLimit(BrokenStore):
    red = ("test_no_more_than_the_limit_are_taken",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        return await super().claim_next(worker_id, agents=agents, limit=1000)


class TakesTheOldestWhosesoever(BrokenStore):
    """One caller with many runs keeps all others waiting."""

    red = ("test_the_oldest_of_each_caller_comes_before_the_second_of_any",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        ready = list(self._iter_claimable(frozenset(agents), self._clock.now()))
        return [self._claim_run(run, worker_id) for run in ready[:limit]]


class GivesTheLastTwice(BrokenStore):
    """Where there was room for more, the last of them is driven twice."""

    red = ("test_of_many_callers_each_run_is_given_once",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims = await super().claim_next(worker_id, agents=agents, limit=limit)
        return [*claims, *claims[-1:]] if len(claims) < limit else claims


class ForgetsTheBackoff(BrokenStore):
    red = (
        "test_a_run_in_its_backoff_is_left_alone_by_claim_next_only",
        "test_the_backoff_between_strikes_holds_when_the_owner_dies",
    )

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[_Run]:
        return super()._iter_claimable(agents, now + timedelta(days=1))


class LooksAtSomeCallersOnly(BrokenStore):
    """Those whose runs wait for something else stand before all others."""

    red = ("test_a_ready_run_is_found_behind_many_callers_in_their_backoff",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[_Run]:
        waiting = {run.new.caller_id for run in self._runs.values() if not self._has_live_owner(run)}
        first = sorted(waiting)[:256]
        return (run for run in super()._iter_claimable(agents, now) if run.new.caller_id in first)


class WaitsForEver(BrokenStore):
    red = ("test_a_run_whose_backoff_is_over_is_taken",)

    async def release(self, claim: Claim, release: Release) -> None:
        longer = timedelta(days=1) if release.delay else timedelta(0)
        await super().release(claim, msgspec.structs.replace(release, delay=longer))


class TakesChildrenFromTheirParents(BrokenStore):
    """The child runs twice: by itself, and when its parent is resumed."""

    red = ("test_a_child_is_left_to_its_parent_until_that_is_over",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[_Run]:
        for run in self._runs.values():
            waits = run.status in (
                RunStatus.QUEUED,
                RunStatus.INTERRUPTED,
                RunStatus.RUNNING,
            ) and not self._has_live_owner(run)
            if waits and run.new.agent_name in agents and run.not_before <= now:
                yield run


class LetsChildrenUseUpTurns(BrokenStore):
    red = ("test_a_child_does_not_use_up_its_callers_turn",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        first: dict[str, str] = {}
        for run_id, run in self._runs.items():
            first.setdefault(run.new.caller_id, run_id)
        ready = self._iter_claimable(frozenset(agents), self._clock.now())
        return [self._claim_run(run, worker_id) for run in list(ready)[:limit] if run.new.run_id in first.values()]


class LeavesOrphansAlone(BrokenStore):
    red = ("test_an_orphan_is_taken",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[_Run]:
        return (run for run in super()._iter_claimable(agents, now) if run.new.parent_run_id is None)


class LooksBeforeItTakes(BrokenStore):
    """Between the look and the taking another may have taken it."""

    red = ("test_claimers_at_once_never_share_a_run",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        ready = list(self._iter_claimable(frozenset(agents), self._clock.now()))[:limit]
        await asyncio.sleep(0)
        return [self._claim_run(run, worker_id) for run in ready]
