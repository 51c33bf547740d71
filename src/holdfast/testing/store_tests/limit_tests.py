"""Tests of priorities, keys and concurrency limits."""

import asyncio
from collections import Counter
from datetime import UTC, datetime

import pytest

from holdfast.checkpoint.errors import LimitReached
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.config import ConcurrencyLimit
from holdfast.testing.store_processes.store_process import StoreProcess
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    create_waiting,
    get_run_ids,
    load_record,
    make_mail,
    make_run,
)
from holdfast.testing.store_tests.race_tests import add_process_worker, open_racers
from holdfast.testing.store_tests.reopen_tests import DurableStoreUnderTest


async def claim_ids(store: RunStore, worker: str, limit: int = 100) -> list[str]:
    return sorted(get_run_ids(await store.claim_next(worker, agents=["agent"], limit=limit)))


async def queue(store: RunStore, *run_ids: str, key: str | None = "k", agent_name: str = "agent") -> None:
    for run_id in run_ids:
        await store.create(make_run(run_id, key=key, agent_name=agent_name))


@pytest.mark.asyncio
class PriorityTests(StoreUnderTest):
    async def test_a_run_keeps_its_priority_and_its_key(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("queued", priority=-10, key="tenant\\1 ü"))
        await create_claimed(store, worker, make_run("claimed", priority=10))
        queued, claimed = await load_record(store, "queued"), await load_record(store, "claimed")
        assert (queued.priority, queued.concurrency_key) == (-10, "tenant\\1 ü")
        assert (claimed.priority, claimed.concurrency_key) == (10, "")

    async def test_a_higher_priority_comes_first(self, store: RunStore, worker: str) -> None:
        for name, caller, priority in (("low", "a", -1), ("usual", "b", 0), ("high-1", "a", 7), ("high-2", "a", 7)):
            await store.create(make_run(name, caller_id=caller, priority=priority))
        order = [await claim_ids(store, worker, 1) for _ in range(4)]
        assert order == [["high-1"], ["high-2"], ["usual"], ["low"]]

    async def test_a_priority_counts_for_interrupted_and_awakened_runs_too(self, store: RunStore, worker: str) -> None:
        past = datetime(2000, 1, 1, tzinfo=UTC)
        dead = await add_worker(store)
        await store.create(make_run("queued", priority=1))
        await create_claimed(store, dead, make_run("abandoned", priority=3))
        await create_waiting(store, worker, make_run("awake", priority=2), wake_at=past)
        await store.deregister_worker(dead)
        assert [await claim_ids(store, worker, 1) for _ in range(3)] == [["abandoned"], ["awake"], ["queued"]]

    async def test_a_run_of_high_priority_that_is_not_due_blocks_no_other(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("later", priority=9, not_before=datetime(2900, 1, 1, tzinfo=UTC)))
        await store.create(make_run("now"))
        assert await claim_ids(store, worker) == ["now"]


@pytest.mark.asyncio
class LimitTests(StoreUnderTest):
    async def test_limits_are_listed_with_their_usage(self, store: RunStore, worker: str) -> None:
        await store.set_limit("key", "k\\", 3)
        await store.set_limit("agent", "agent", 5, default=True)
        await store.set_limit("key", "a", 1)
        await create_claimed(store, worker, make_run("one", key="k\\"))
        await create_claimed(store, worker, make_run("two"))
        await store.create(make_run("queued", key="k\\"))
        found = [(used.limit, used.running, used.is_default) for used in await store.list_limits()]
        assert found == [
            (ConcurrencyLimit(agent="agent", max_runs=5), 2, True),
            (ConcurrencyLimit(key="a", max_runs=1), 0, False),
            (ConcurrencyLimit(key="k\\", max_runs=3), 1, False),
        ]

    async def test_a_default_replaces_only_a_default(self, store: RunStore) -> None:
        async def set_and_read(max_runs: int, default: bool) -> tuple[int, bool]:
            await store.set_limit("key", "k", max_runs, default=default)
            [used] = await store.list_limits()
            return used.limit.max_runs, used.is_default

        assert await set_and_read(1, True) == (1, True)
        assert await set_and_read(2, True) == (2, True)
        assert await set_and_read(3, False) == (3, False)
        assert await set_and_read(4, True) == (3, False)
        assert await set_and_read(5, False) == (5, False)

    async def test_a_removed_limit_limits_nothing(self, store: RunStore, worker: str) -> None:
        await store.set_limit("key", "k", 0)
        await queue(store, "run-1")
        assert await claim_ids(store, worker) == []
        assert not await store.set_limit("agent", "k", None)
        assert await store.set_limit("key", "k", None)
        assert not await store.set_limit("key", "k", None)
        assert await store.list_limits() in ([], ())
        assert await claim_ids(store, worker) == ["run-1"]

    async def test_no_more_runs_of_a_key_are_claimed_than_its_limit(self, store: RunStore, worker: str) -> None:
        await store.set_limit("key", "k", 2)
        await queue(store, "k-1", "k-2", "k-3")
        await queue(store, "free", key=None)
        await queue(store, "other", key="o")
        assert await claim_ids(store, worker) == ["free", "k-1", "k-2", "other"]
        assert await claim_ids(store, await add_worker(store)) == []

    async def test_no_more_runs_of_an_agent_are_claimed_than_its_limit(self, store: RunStore, worker: str) -> None:
        await store.set_limit("agent", "agent", 2)
        await queue(store, "a-1", "a-2", "a-3", key=None)
        await queue(store, "b-1", "b-2", "b-3", key=None, agent_name="another")
        claims = await store.claim_next(worker, agents=["agent", "another"], limit=100)
        assert sorted(get_run_ids(claims)) == ["a-1", "a-2", "b-1", "b-2", "b-3"]

    async def test_both_limits_of_a_run_count(self, store: RunStore, worker: str) -> None:
        await store.set_limit("agent", "agent", 3)
        await store.set_limit("key", "k", 2)
        await queue(store, "k-1", "k-2", "k-3")
        await queue(store, "l-1", "l-2", key="l")
        assert await claim_ids(store, worker) == ["k-1", "k-2", "l-1"]

    async def test_runs_behind_many_whose_limit_is_reached_are_claimed(self, store: RunStore, worker: str) -> None:
        """Of the same caller, of others, and of a lower priority: more than a store looks at in one step."""
        await store.set_limit("key", "k", 0)
        blocked = [make_run(f"blocked-{n:03}", key="k", priority=n % 2) for n in range(700)]
        await asyncio.gather(*(store.create(run) for run in blocked))
        await store.create(make_run("same", key="l"))
        await store.create(make_run("other", caller_id="other"))
        await store.create(make_run("low", caller_id="low", priority=-5))
        assert await claim_ids(store, worker) == ["low", "other", "same"]

    async def test_a_slot_is_free_again_when_its_run_ends_waits_or_is_removed(
        self, store: RunStore, worker: str
    ) -> None:
        await store.set_limit("key", "k", 1)
        for status in (RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED, RunStatus.WAITING):
            claim = await create_claimed(store, worker, make_run(status, key="k"))
            await queue(store, f"behind-{status}")
            assert await claim_ids(store, worker) == []
            await store.release(claim, Release(status=status))
            [behind] = await store.claim_next(worker, agents=["agent"], limit=9)
            await store.remove(behind.run_id, claim=behind)

    async def test_a_run_that_awakes_waits_for_a_slot(self, store: RunStore, worker: str) -> None:
        await store.set_limit("key", "k", 1)
        await create_waiting(store, worker, make_run("waiting", key="k"), wake_on=["message"])
        holder = await create_claimed(store, worker, make_run("holder", key="k"))
        await store.post("waiting", make_mail())
        assert await claim_ids(store, worker) == []
        await store.release(holder, Release(status=RunStatus.DONE))
        assert await claim_ids(store, worker) == ["waiting"]

    async def test_a_dead_worker_holds_no_slot(self, store: RunStore, worker: str) -> None:
        await store.set_limit("key", "k", 1)
        dead = await add_worker(store)
        await create_claimed(store, dead, make_run("abandoned", key="k"))
        await queue(store, "queued")
        await store.deregister_worker(dead)
        assert [used.running for used in await store.list_limits()] == [0]
        assert len(await claim_ids(store, worker)) == 1, "one of the two"
        assert [used.running for used in await store.list_limits()] == [1]

    async def test_a_limit_below_what_runs_stops_nothing_and_starts_nothing(self, store: RunStore, worker: str) -> None:
        claims = [await create_claimed(store, worker, make_run(f"run-{n}", key="k")) for n in range(3)]
        await queue(store, "queued")
        await store.set_limit("key", "k", 2)
        for claim in claims[:2]:
            assert await claim_ids(store, worker) == []
            await store.release(claim, Release(status=RunStatus.DONE))
        assert (await load_record(store, "run-2")).owner_alive
        assert await claim_ids(store, worker) == ["queued"]
        await queue(store, "more")
        assert await claim_ids(store, worker) == []
        await store.set_limit("key", "k", 3)
        assert await claim_ids(store, worker) == ["more"]

    async def test_a_run_created_for_a_worker_is_queued_if_its_limit_is_reached(
        self, store: RunStore, worker: str
    ) -> None:
        await store.set_limit("key", "k", 1)
        first = await create_claimed(store, worker, make_run("first", key="k"))
        assert await store.create(make_run("second", key="k"), worker_id=worker) is None
        record = await load_record(store, "second")
        assert (record.status, record.owner, record.strikes) == (RunStatus.QUEUED, None, 0)
        await store.release(first, Release(status=RunStatus.DONE))
        assert await claim_ids(store, worker) == ["second"]

    async def test_a_claim_within_the_limits_is_refused_when_one_is_reached(self, store: RunStore, worker: str) -> None:
        await store.set_limit("key", "k", 1)
        holder = await create_claimed(store, worker, make_run("holder", key="k"))
        await queue(store, "run-1")
        with pytest.raises(LimitReached) as refused:
            await store.claim("run-1", worker, within_limits=True)
        assert (refused.value.run_id, refused.value.status) == ("run-1", RunStatus.QUEUED)
        assert (await load_record(store)).status is RunStatus.QUEUED
        await store.release(holder, Release(status=RunStatus.DONE))
        assert (await store.claim("run-1", worker, within_limits=True)).strikes == 1

    async def test_a_persons_claim_ignores_the_limits_and_holds_a_slot(self, store: RunStore, worker: str) -> None:
        await store.set_limit("agent", "agent", 1)
        await create_claimed(store, worker, make_run("holder"))
        await queue(store, "run-1")
        await store.claim("run-1", worker)
        assert [used.running for used in await store.list_limits()] == [2]

    async def test_a_run_with_a_parent_needs_no_slot(self, store: RunStore, worker: str) -> None:
        await store.set_limit("agent", "agent", 1)
        await create_claimed(store, worker, make_run("parent"))
        await create_claimed(store, worker, make_run("child", parent_run_id="parent"))
        await store.claim("child", worker, steal=True, within_limits=True)
        assert [used.running for used in await store.list_limits()] == [1]

    async def test_a_background_child_needs_a_slot(self, store: RunStore, worker: str) -> None:
        await store.set_limit("agent", "agent", 2)
        await create_claimed(store, worker, make_run("parent"))
        await create_claimed(store, worker, make_run("child", parent_run_id="parent", background=True))
        assert [used.running for used in await store.list_limits()] == [2]
        another = make_run("another", parent_run_id="parent", background=True)
        assert await store.create(another, worker_id=worker) is None
        with pytest.raises(LimitReached):
            await store.claim("another", worker, within_limits=True)
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_of_many_claimers_each_slot_has_one(self, store: RunStore) -> None:
        await store.set_limit("key", "k", 3)
        await queue(store, *(f"run-{n}" for n in range(10)))
        workers = [await add_worker(store) for _ in range(5)]
        await asyncio.gather(
            *(store.claim_next(worker, agents=["agent"], limit=2) for worker in workers),
            *(store.create(make_run(f"new-{worker}", key="k"), worker_id=worker) for worker in workers),
            *(store.claim("run-9", worker, within_limits=True) for worker in workers),
            return_exceptions=True,
        )
        assert [used.running for used in await store.list_limits()] == [3]


@pytest.mark.asyncio
class SharedLimitTests(DurableStoreUnderTest):
    async def test_limits_survive_the_process(self, location: str) -> None:
        async with StoreProcess(self.factory, location) as killed:
            await killed.set_limit("key", "k", 7)
            await killed.child.kill()
        async with self.open_store(location) as store:
            assert [used.limit for used in await store.list_limits()] == [ConcurrencyLimit(key="k", max_runs=7)]

    async def test_processes_never_exceed_a_limit(self, location: str) -> None:
        """Each claims runs of two keys, looks how many are running, and ends them."""
        names = [f"run-{n}" for n in range(60)]
        done: Counter[str] = Counter()
        observed: list[int] = []

        async def work(store: RunStore, worker: str) -> None:
            while sum(done.values()) < len(names):
                claims: list[Claim] = [*await store.claim_next(worker, agents=["agent"], limit=3)]
                observed.extend(used.running - used.limit.max_runs for used in await store.list_limits())
                for claim in claims:
                    await store.release(claim, Release(status=RunStatus.DONE))
                    done[claim.run_id] += 1

        async with open_racers(self.factory, location) as racing:
            store, _ = racing[0]
            await store.set_limit("key", "k-0", 1)
            await store.set_limit("key", "k-1", 2)
            for n, name in enumerate(names):
                await store.create(make_run(name, caller_id=f"caller-{n % 5}", key=f"k-{n % 2}"))
            await asyncio.gather(*(work(*racer) for racer in racing))
        assert max(observed) <= 0, "how far a limit was exceeded"
        assert done == Counter(names)

    async def test_a_killed_process_frees_its_slots(self, store: RunStore, worker: str, location: str) -> None:
        await store.set_limit("key", "k", 1)
        async with StoreProcess(self.factory, location) as other:
            await create_claimed(
                other, await add_process_worker(other, other.child.identity), make_run("held", key="k")
            )
            await queue(store, "queued")
            assert await claim_ids(store, worker) == []
            await other.child.kill()
            assert len(await claim_ids(store, worker)) == 1
            assert [used.running for used in await store.list_limits()] == [1]
