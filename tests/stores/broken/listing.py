"""Stores that break the contract of listings and of `claim_next`."""

import asyncio
import operator
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec
from tests.stores.broken.broken_store import BrokenStore

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.record import NewRun, Release, RunFilter, RunPage, RunRecord, RunStatus
from holdfast.checkpoint.workers import Claim
from holdfast.stores.memory_run import MemoryRun


class BrokenListing(BrokenStore):
    """Breaks the pages that are oldest first."""

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        if not oldest_first:
            return await super().list_page(filter, limit=limit, cursor=cursor)
        return await self.read_page(filter or RunFilter(), limit, cursor)

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        page = await super().list_page(filter, limit=limit, cursor=cursor, oldest_first=True)
        return RunPage(records=self.change_records(page.records, filter), cursor=page.cursor)

    def change_records(self, records: Sequence[RunRecord], filter: RunFilter) -> Sequence[RunRecord]:
        return records


class ListsAnUnknownRun(BrokenListing):
    red = ("test_an_empty_store_lists_nothing",)

    def change_records(self, records: Sequence[RunRecord], filter: RunFilter) -> Sequence[RunRecord]:
        now = self._clock.now()
        new = NewRun(run_id="unknown", agent_name="", info=b"", progress=b"", entries=())
        unknown = MemoryRun(new=new, created_at=now, updated_at=now, not_before=now, progress=b"")
        return [self._make_record(unknown), *records]


class ListsByName(BrokenListing):
    red = ("test_runs_are_listed_oldest_first",)

    def change_records(self, records: Sequence[RunRecord], filter: RunFilter) -> Sequence[RunRecord]:
        return sorted(records, key=operator.attrgetter("run_id"))


class ListsWithoutTheProgress(BrokenListing):
    red = ("test_a_listed_record_equals_the_loaded_one",)

    def change_records(self, records: Sequence[RunRecord], filter: RunFilter) -> Sequence[RunRecord]:
        return [msgspec.structs.replace(record, progress=b"") for record in records]


class AppliesTheFirstFilterOnly(BrokenListing):
    red = ("test_a_listed_run_matches_every_filter",)

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        if filter.agent_name is not None:
            filter = RunFilter(agent_name=filter.agent_name)
        return await super().read_page(filter, limit, cursor)


class MatchesAnyLabel(BrokenListing):
    red = ("test_pages_and_listings_match_every_filter", "test_a_filter_compares_whole_values")

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(msgspec.structs.replace(filter, labels={}), limit, cursor)
        fit = [each for each in page.records if not filter.labels or filter.labels.items() & each.labels.items()]
        return RunPage(records=fit, cursor=page.cursor)


class MatchesPartsOfValues(BrokenListing):
    red = ("test_a_filter_compares_whole_values",)

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(msgspec.structs.replace(filter, caller_id=None), limit, cursor)
        fit = [each for each in page.records if each.caller_id.startswith(filter.caller_id or "")]
        return RunPage(records=fit, cursor=page.cursor)


class ListsReleasedRunsOnly(BrokenListing):
    """Runs of a dead owner are not listed as interrupted."""

    red = ("test_runs_without_a_live_worker_are_listed_as_interrupted",)

    def change_records(self, records: Sequence[RunRecord], filter: RunFilter) -> Sequence[RunRecord]:
        return [each for each in records if not filter.interrupted or each.status is not RunStatus.RUNNING]


class SkipsRunsWhenOthersAreRemoved(BrokenListing):
    """The cursor is an offset: a removed run moves all others."""

    red = ("test_a_listing_continues_while_its_runs_change",)

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        start = int(cursor or 0)
        records = [record for run in self._runs.values() if filter.matches(record := self._make_record(run))]
        page = records[start : start + limit]
        return RunPage(records=page, cursor=str(start + limit) if start + limit < len(records) else None)


class SharesOneCursor(BrokenListing):
    """Two listings at the same time each get a part of the runs."""

    red = ("test_concurrent_listings_are_complete",)

    _cursor: str | None = None

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        await asyncio.sleep(0)
        page = await super().read_page(filter, limit, self._cursor)
        self._cursor = page.cursor
        return page


class CachesListedRecords(BrokenListing):
    """Takes a run for unchanged if it has the same id, status and size."""

    red = ("test_a_run_that_replaces_another_at_once_is_listed",)

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._listed: dict[tuple[object, ...], RunRecord] = {}

    def change_records(self, records: Sequence[RunRecord], filter: RunFilter) -> Sequence[RunRecord]:
        return [self._listed.setdefault((each.run_id, each.status, each.size), each) for each in records]


class StaysLockedAfterAListing(BrokenListing):
    """A listing that is left early never releases its lock."""

    red = ("test_a_listing_may_be_left_early",)

    _listing = False

    async def read_page(self, filter: RunFilter, limit: int, cursor: str | None) -> RunPage:
        page = await super().read_page(filter, limit, cursor)
        self._listing = page.cursor is not None
        return page

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        if self._listing:
            raise StoreUnavailable("a listing is running")
        await super().remove(run_id, claim=claim, erase=erase)


class ClaimsQueuedRunsOnly(BrokenStore):
    """A queue that never recovers anything."""

    red = ("test_interrupted_runs_are_claimed",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        return (run for run in super()._iter_claimable(agents, now) if run.status is RunStatus.QUEUED)


class LeavesDetachedChildrenToTheirParents(BrokenStore):
    red = ("test_a_background_child_is_claimed_beside_its_parent",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        return (run for run in super()._iter_claimable(agents, now) if run.new.parent_run_id is None)


class ClaimsExecutedRuns(BrokenStore):
    red = ("test_an_executed_run_is_not_claimed",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        return (run for run in self._runs.values() if run.new.agent_name in agents)


class ClaimsRunsOfAnyAgent(BrokenStore):
    red = ("test_only_runs_of_the_given_agents_are_claimed",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        every = {run.new.agent_name for run in self._runs.values()}
        return await super().claim_next(worker_id, agents=every, limit=limit)


class ClaimsWithoutLimit(BrokenStore):
    red = ("test_no_more_runs_than_the_limit_are_claimed",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        return await super().claim_next(worker_id, agents=agents, limit=1000)


class IgnoresTheCaller(BrokenStore):
    """A caller with many runs delays all others."""

    red = ("test_the_oldest_of_each_caller_comes_before_the_second_of_any",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        ready = list(self._iter_claimable(frozenset(agents), self._clock.now()))
        return [self._claim_run(run, worker_id) for run in ready[:limit]]


class ClaimsTheLastRunTwice(BrokenStore):
    """Below the limit, the last run is claimed twice."""

    red = ("test_runs_of_many_callers_are_claimed_once_each",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims = await super().claim_next(worker_id, agents=agents, limit=limit)
        return [*claims, *claims[-1:]] if len(claims) < limit else claims


class ForgetsTheBackoff(BrokenStore):
    red = (
        "test_only_claim_next_skips_a_run_in_its_backoff",
        "test_the_backoff_between_strikes_holds_when_the_owner_dies",
    )

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        return super()._iter_claimable(agents, now + timedelta(days=1))


class ChecksSomeCallersOnly(BrokenStore):
    """Callers whose runs are in their backoff block all others."""

    red = ("test_a_ready_run_is_found_behind_many_callers_in_their_backoff",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        waiting = {run.new.caller_id for run in self._runs.values() if not self._has_live_owner(run)}
        first = sorted(waiting)[:256]
        return (run for run in super()._iter_claimable(agents, now) if run.new.caller_id in first)


class ExtendsTheBackoff(BrokenStore):
    red = ("test_a_run_is_claimed_after_its_backoff",)

    async def release(self, claim: Claim, release: Release) -> None:
        longer = timedelta(days=1) if release.delay else timedelta(0)
        await super().release(claim, msgspec.structs.replace(release, delay=longer))


class ClaimsChildrenOfUnfinishedParents(BrokenStore):
    """The child runs twice: by itself, and when its parent is resumed."""

    red = ("test_a_child_is_claimed_only_after_its_parent",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
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


class NeverClaimsOrphans(BrokenStore):
    red = ("test_an_orphan_is_claimed",)

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        return (run for run in super()._iter_claimable(agents, now) if run.new.parent_run_id is None)


class ClaimsAfterAnAwait(BrokenStore):
    """Between the selection and the claim another claimer may select the same runs."""

    red = ("test_concurrent_claimers_never_share_a_run",)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        ready = list(self._iter_claimable(frozenset(agents), self._clock.now()))[:limit]
        await asyncio.sleep(0)
        return [self._claim_run(run, worker_id) for run in ready]
