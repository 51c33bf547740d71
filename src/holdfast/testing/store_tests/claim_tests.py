"""Tests of claims, fencing and workers."""

import asyncio
import itertools
import operator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunNotClaimable, RunNotFound
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RELEASE_STATUSES, Release, RunStatus
from holdfast.checkpoint.store import RunStore, iter_runs
from holdfast.checkpoint.workers import backoff, count_live_workers
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_run,
    make_worker,
)

_NOT_CLAIMABLE = sorted(RELEASE_STATUSES - CLAIMABLE_STATUSES)


@pytest.mark.asyncio
class ClaimTests(StoreUnderTest):
    async def test_a_queued_run_is_claimed(self, store: RunStore, worker: str) -> None:
        await store.create(make_run())
        claim = await store.claim("run-1", worker)
        record = await load_record(store)
        assert (claim.run_id, claim.worker_id, claim.strikes) == ("run-1", worker, 1)
        assert (record.status, record.owner, record.owner_alive) == (RunStatus.RUNNING, worker, True)
        assert (record.token, record.strikes) == (claim.token, 1)
        await store.append(claim, make_append(1, b"more"))

    async def test_a_released_run_is_claimed_again(self, store: RunStore, worker: str) -> None:
        first = await create_claimed(store, worker)
        await store.release(first, Release(status=RunStatus.INTERRUPTED))
        other = await add_worker(store)
        second = await store.claim("run-1", other)
        assert second.token > first.token
        assert (await load_record(store)).owner == other

    async def test_a_claim_names_the_worker_that_died(self, store: RunStore, worker: str) -> None:
        first = await create_claimed(store, worker)
        await store.release(first, Release(status=RunStatus.INTERRUPTED))
        [released] = await store.claim_next(worker, agents=["agent"], limit=1)
        await store.deregister_worker(worker)
        other = await add_worker(store)
        [taken] = await store.claim_next(other, agents=["agent"], limit=1)
        stolen = await store.claim("run-1", await add_worker(store), steal=True)
        assert [claim.taken_from for claim in (first, released, taken, stolen)] == [None, None, worker, other]

    async def test_a_claim_that_finished_no_step_is_a_strike(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for strikes in (2, 3, 4):
            claim = await store.claim("run-1", worker, steal=True)
            assert (claim.strikes, (await load_record(store)).strikes) == (strikes, strikes)
        await store.append(claim, make_append(1, b"a whole step", step_finished=True))
        assert (await store.claim("run-1", worker, steal=True)).strikes == 1

    async def test_a_finished_step_ends_the_backoff(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for _ in range(3):
            claim = await store.claim("run-1", worker, steal=True)
        waiting = (await load_record(store)).not_before
        await store.append(claim, make_append(1, b"half a step"))
        assert (await load_record(store)).not_before == waiting
        await store.append(claim, make_append(2, b"a whole step", step_finished=True))
        await store.deregister_worker(worker)
        assert len(await store.claim_next(await add_worker(store), agents=["agent"], limit=1)) == 1

    async def test_of_many_claimers_one_wins(self, store: RunStore) -> None:
        await store.create(make_run())
        workers = [await add_worker(store) for _ in range(10)]
        results = await asyncio.gather(*(store.claim("run-1", worker) for worker in workers), return_exceptions=True)
        winners = [result for result in results if not isinstance(result, BaseException)]
        losers = [result for result in results if isinstance(result, BaseException)]
        assert len(winners) == 1
        assert [type(loser) for loser in losers] == [RunBusy] * 9
        record = await load_record(store)
        assert (record.owner, record.token) == (winners[0].worker_id, winners[0].token)

    async def test_a_live_workers_run_is_busy_and_is_left_alone(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        before = await load_contents(store)
        with pytest.raises(RunBusy) as busy:
            await store.claim("run-1", await add_worker(store))
        assert (busy.value.run_id, busy.value.owner) == ("run-1", worker)
        assert await load_contents(store) == before

    async def test_a_steal_takes_the_run_from_a_live_owner(self, store: RunStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        new_owner = await add_worker(store)
        new = await store.claim("run-1", new_owner, steal=True)
        assert new.token > old.token
        assert (await load_record(store)).owner == new_owner
        await store.append(new, make_append(1, b"by the new owner"))
        assert await load_bodies(store) == [b"begin", b"by the new owner"]

    @pytest.mark.parametrize("status", _NOT_CLAIMABLE)
    async def test_a_run_in_a_status_not_asked_for_is_refused(
        self, store: RunStore, worker: str, status: RunStatus
    ) -> None:
        await store.release(await create_claimed(store, worker), Release(status=status, reason="because"))
        before = await load_contents(store)
        for steal in (False, True):
            with pytest.raises(RunNotClaimable) as refused:
                await store.claim("run-1", worker, steal=steal)
            assert (refused.value.run_id, refused.value.status, refused.value.reason) == ("run-1", status, "because")
        assert await load_contents(store) == before

    @pytest.mark.parametrize("status", _NOT_CLAIMABLE)
    async def test_a_run_in_a_status_asked_for_is_claimed(
        self, store: RunStore, worker: str, status: RunStatus
    ) -> None:
        old = await create_claimed(store, worker)
        await store.release(old, Release(status=status, retention=timedelta(0)))
        new = await store.claim("run-1", worker, statuses={status})
        assert new.token > old.token
        record = await load_record(store)
        assert (record.status, record.owner) == (RunStatus.RUNNING, worker)
        await store.append(new, make_append(1, b"again"))
        assert await store.purge() == 0, "a run that is executed again is not terminal"

    async def test_a_status_left_out_is_refused(self, store: RunStore, worker: str) -> None:
        await store.create(make_run())
        with pytest.raises(RunNotClaimable):
            await store.claim("run-1", worker, statuses={RunStatus.PARKED})
        assert (await load_record(store)).status is RunStatus.QUEUED

    async def test_an_unknown_run_cannot_be_claimed(self, store: RunStore, worker: str) -> None:
        with pytest.raises(RunNotFound):
            await store.claim("run-1", worker)
        with pytest.raises(RunNotFound):
            await store.claim("run-1", worker, steal=True)

    async def test_a_claim_starts_the_backoff(self, store: RunStore, worker: str) -> None:
        await store.release(await create_claimed(store, worker), Release(status=RunStatus.INTERRUPTED, strikes=2))
        assert (await store.claim("run-1", worker)).strikes == 3
        record = await load_record(store)
        assert record.not_before - record.created_at >= backoff(3)


@pytest.mark.asyncio
class FencingTests(StoreUnderTest):
    async def test_a_superseded_claim_writes_nothing(self, store: RunStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        new = await store.claim("run-1", await add_worker(store), steal=True)
        before = await load_contents(store)
        for write in (
            make_append(1, b"late", progress=b"late", step_finished=True),
            make_append(1, b"late", rewrite=True),
            make_append(1, progress=b"late"),
        ):
            with pytest.raises(ClaimLost) as lost:
                await store.append(old, write)
            assert (lost.value.run_id, lost.value.held, lost.value.current) == ("run-1", old.token, new.token)
        assert await load_contents(store) == before

    async def test_a_superseded_claim_releases_nothing(self, store: RunStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        await store.claim("run-1", worker, steal=True)
        before = await load_contents(store)
        for status in sorted(RELEASE_STATUSES):
            with pytest.raises(ClaimLost):
                await store.release(old, Release(status=status, progress=b"late"))
        assert await load_contents(store) == before

    async def test_a_superseded_claim_removes_nothing(self, store: RunStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        await store.claim("run-1", worker, steal=True)
        before = await load_contents(store)
        with pytest.raises(ClaimLost):
            await store.remove("run-1", claim=old)
        assert await load_contents(store) == before

    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_released_claim_writes_nothing(self, store: RunStore, worker: str, status: RunStatus) -> None:
        claim = await create_claimed(store, worker)
        await store.release(claim, Release(status=status))
        before = await load_contents(store)
        with pytest.raises(ClaimLost):
            await store.append(claim, make_append(1, b"late"))
        with pytest.raises(ClaimLost):
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        assert await load_contents(store) == before

    async def test_a_claim_on_a_removed_run_writes_nothing(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.remove("run-1", claim=claim)
        with pytest.raises(ClaimLost):
            await store.append(claim, make_append(1, b"late"))
        with pytest.raises(ClaimLost):
            await store.release(claim, Release(status=RunStatus.DONE))
        with pytest.raises(ClaimLost):
            await store.remove("run-1", claim=claim)
        assert [record async for record in iter_runs(store)] == []

    async def test_an_old_claim_does_not_fit_a_new_run_of_the_same_id(self, store: RunStore, worker: str) -> None:
        old = await create_claimed(store, worker)
        await store.remove("run-1", claim=old)
        await create_claimed(store, worker)
        before = await load_contents(store)
        with pytest.raises(ClaimLost):
            await store.append(old, make_append(1, b"late"))
        with pytest.raises(ClaimLost):
            await store.remove("run-1", claim=old)
        assert await load_contents(store) == before

    async def test_tokens_only_grow_also_over_removal_and_new_creation(self, store: RunStore, worker: str) -> None:
        tokens = []
        for run_id in ("run-1", "run-2", "run-1", "run-1"):
            claim = await create_claimed(store, worker, make_run(run_id))
            tokens.append(claim.token)
            claim = await store.claim(run_id, worker, steal=True)
            tokens.append(claim.token)
            await store.remove(run_id, claim=claim)
            await store.create(make_run(run_id))
            [claim] = await store.claim_next(worker, agents=["agent"], limit=1)
            tokens.append(claim.token)
            await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(0)))
            assert await store.purge() == 1
        assert all(earlier < later for earlier, later in itertools.pairwise(tokens)), tokens


@pytest.mark.asyncio
class WorkerTests(StoreUnderTest):
    async def test_a_deregistered_workers_runs_are_interrupted(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        stays = await add_worker(store)
        await create_claimed(store, stays, make_run("run-2"))
        await store.deregister_worker(worker)
        record = await load_record(store)
        assert record.is_interrupted
        assert not record.owner_alive
        assert record.owner == worker, "the record keeps the last owner"
        assert (await store.claim("run-1", stays)).worker_id == stays
        assert not (await load_record(store, "run-2")).is_interrupted

    async def test_deregistering_an_unknown_worker_is_fine(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        await store.deregister_worker("unknown")
        await store.deregister_worker("unknown")
        assert (await load_record(store)).owner_alive

    async def test_a_worker_is_listed_with_the_agents_that_it_registered_last(self, store: RunStore) -> None:
        names = ("agent", 'quote"d, \\ [x]', "naïve \N{GRINNING FACE}", "nul\0", "agent-2")
        knows, idle = sorted((make_worker(), make_worker()), key=operator.attrgetter("worker_id"))
        for agents in (("earlier",), names):
            await store.register_worker(replace(knows, agents=agents))
        await store.register_worker(idle)
        await create_claimed(store, knows.worker_id)
        for listed in (await store.list_workers(), (await store.read_fleet()).workers):
            assert [each.worker for each in listed] == [replace(knows, agents=names), idle]
            assert count_live_workers(listed) == dict.fromkeys(names, 1)
        await store.register_worker(knows)
        assert [each.worker for each in await store.list_workers()] == [knows, idle]
        assert (await load_record(store)).owner_alive, "it keeps its claims"
        await store.deregister_worker(knows.worker_id)
        assert [each.worker for each in await store.list_workers()] == [idle]

    async def test_one_worker_holds_many_runs(self, store: RunStore, worker: str) -> None:
        for n in range(30):
            await create_claimed(store, worker, make_run(f"run-{n}"))
        assert [record.owner_alive async for record in iter_runs(store)] == [True] * 30
        await store.deregister_worker(worker)
        assert [record.is_interrupted async for record in iter_runs(store)] == [True] * 30
