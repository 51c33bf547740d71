"""Tests of listings and `claim_next`."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunFilter, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    get_run_ids,
    list_run_ids,
    load_contents,
    load_record,
    make_append,
    make_run,
)


@pytest.mark.asyncio
class ListingTests(StoreUnderTest):
    async def test_an_empty_store_lists_nothing(self, store: CheckpointStore) -> None:
        assert await list_run_ids(store) == []

    async def test_runs_are_listed_oldest_first(self, store: CheckpointStore, worker: str) -> None:
        for run_id in ("zebra", "apple", "Mango", "10", "9"):
            claim = await create_claimed(store, worker, make_run(run_id))
            await store.append(claim, make_append(1, b"more"))
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        await store.claim("apple", worker)
        assert await list_run_ids(store) == ["zebra", "apple", "Mango", "10", "9"]

    async def test_a_listed_record_equals_the_loaded_one(self, store: CheckpointStore, worker: str) -> None:
        await store.create(make_run("queued", meta=b"\0\xff", parent_run_id="deregistered"))
        await store.append(
            await create_claimed(store, worker, make_run("running")), make_append(1, b"more", progress=b"\0\xff")
        )
        for status in sorted(RELEASE_STATUSES):
            claim = await create_claimed(store, worker, make_run(status))
            await store.release(claim, Release(status=status, reason="because", retention=timedelta(hours=1)))
        records = [record async for record in store.list_runs()]
        assert len(records) == 2 + len(RELEASE_STATUSES)
        for record in records:
            assert record == (await load_contents(store, record.run_id))[0]

    async def test_a_listed_run_matches_every_filter(self, store: CheckpointStore, worker: str) -> None:
        await store.create(make_run("one", agent_name="A", caller_id="x"))
        await store.create(make_run("two", agent_name="A", caller_id="y", parent_run_id="one"))
        await create_claimed(store, worker, make_run("three", agent_name="B", caller_id="x", parent_run_id="one"))
        parked = await create_claimed(store, worker, make_run("four", agent_name="B", caller_id="y"))
        await store.release(parked, Release(status=RunStatus.PARKED))
        for filter, expected in (
            (RunFilter(), ["one", "two", "three", "four"]),
            (RunFilter(agent_name="A"), ["one", "two"]),
            (RunFilter(caller_id="x"), ["one", "three"]),
            (RunFilter(parent_run_id="one"), ["two", "three"]),
            (RunFilter(statuses=frozenset({RunStatus.QUEUED, RunStatus.PARKED})), ["one", "two", "four"]),
            (RunFilter(statuses=frozenset()), []),
            (RunFilter(interrupted=True), ["one", "two"]),
            (RunFilter(agent_name="B", caller_id="x", parent_run_id="one"), ["three"]),
            (RunFilter(agent_name="B", interrupted=True), []),
            (RunFilter(statuses=frozenset({RunStatus.PARKED}), interrupted=True), []),
            (RunFilter(agent_name="C"), []),
        ):
            assert await list_run_ids(store, filter) == expected, filter

    async def test_runs_without_a_live_worker_are_listed_as_interrupted(
        self, store: CheckpointStore, worker: str
    ) -> None:
        deregistered = await add_worker(store)
        await store.create(make_run("queued"))
        await create_claimed(store, deregistered, make_run("abandoned"))
        await create_claimed(store, worker, make_run("executed"))
        for status in sorted(RELEASE_STATUSES):
            await store.release(await create_claimed(store, worker, make_run(status)), Release(status=status))
        await store.deregister_worker(deregistered)
        assert await list_run_ids(store, RunFilter(interrupted=True)) == ["queued", "abandoned", "interrupted"]

    async def test_a_listing_continues_while_its_runs_change(self, store: CheckpointStore, worker: str) -> None:
        names = [f"run-{n:03}" for n in range(120)]
        for name in names:
            await store.create(make_run(name))
        seen = []
        async for record in store.list_runs(RunFilter(interrupted=True)):
            seen.append(record.run_id)
            await store.remove(record.run_id, claim=await store.claim(record.run_id, worker))
            await store.create(make_run(f"new-{record.run_id}", agent_name="other"))
            if len(seen) > 2 * len(names):
                break
        assert [run_id for run_id in seen if run_id in names] == names

    async def test_concurrent_listings_are_complete(self, store: CheckpointStore) -> None:
        names = [f"run-{n}" for n in range(50)]
        for name in names:
            await store.create(make_run(name))
        for listed in await asyncio.gather(*(list_run_ids(store) for _ in range(20))):
            assert listed == names

    async def test_a_run_that_replaces_another_at_once_is_listed(self, store: CheckpointStore, worker: str) -> None:
        for _ in range(30):
            claim = await create_claimed(store, worker)
            assert [record.token async for record in store.list_runs()] == [claim.token]
            await store.remove("run-1", claim=claim)

    async def test_a_listing_may_be_left_early(self, store: CheckpointStore) -> None:
        for n in range(50):
            await store.create(make_run(f"run-{n}"))
        async for record in store.list_runs():
            assert record.run_id == "run-0"
            break
        await store.remove("run-0")
        assert len(await list_run_ids(store)) == 49


@pytest.mark.asyncio
class ClaimNextTests(StoreUnderTest):
    async def test_interrupted_runs_are_claimed(self, store: CheckpointStore, worker: str) -> None:
        deregistered = await add_worker(store)
        await store.create(make_run("queued"))
        await create_claimed(store, deregistered, make_run("abandoned"))
        await store.release(
            await create_claimed(store, deregistered, make_run("released")), Release(status=RunStatus.INTERRUPTED)
        )
        await store.deregister_worker(deregistered)
        claims = await store.claim_next(worker, agents=["agent"], limit=10)
        assert sorted(get_run_ids(claims)) == ["abandoned", "queued", "released"]
        for claim in claims:
            record = await load_record(store, claim.run_id)
            assert (record.status, record.owner, record.owner_alive) == (RunStatus.RUNNING, worker, True)
            assert (record.token, record.strikes) == (claim.token, claim.strikes)
            assert claim.strikes == (2 if claim.run_id == "abandoned" else 1)
            await store.append(claim, make_append(1, b"more"))

    async def test_an_executed_run_is_not_claimed(self, store: CheckpointStore, worker: str) -> None:
        await create_claimed(store, worker)
        assert get_run_ids(await store.claim_next(await add_worker(store), agents=["agent"], limit=10)) == []
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_only_runs_of_the_given_agents_are_claimed(self, store: CheckpointStore, worker: str) -> None:
        for name in ("A", "B", "C"):
            await store.create(make_run(f"run-{name}", agent_name=name))
        assert get_run_ids(await store.claim_next(worker, agents=[], limit=10)) == []
        assert get_run_ids(await store.claim_next(worker, agents=["a"], limit=10)) == []
        assert sorted(get_run_ids(await store.claim_next(worker, agents={"C", "A", "D"}, limit=10))) == [
            "run-A",
            "run-C",
        ]

    async def test_no_more_runs_than_the_limit_are_claimed(self, store: CheckpointStore, worker: str) -> None:
        for n in range(5):
            await store.create(make_run(f"run-{n}"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=0)) == []
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=2)) == ["run-0", "run-1"]
        assert len(await list_run_ids(store, RunFilter(interrupted=True))) == 3

    async def test_the_oldest_of_each_caller_comes_before_the_second_of_any(
        self, store: CheckpointStore, worker: str
    ) -> None:
        for n in range(5):
            await store.create(make_run(f"busy-{n}", caller_id="busy"))
        for caller in ("quiet", "shy"):
            for n in range(2):
                await store.create(make_run(f"{caller}-{n}", caller_id=caller))
        first = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=4))
        assert sorted(first) == ["busy-0", "busy-1", "quiet-0", "shy-0"]
        rest = get_run_ids(await store.claim_next(worker, agents=["agent"], limit=3))
        assert sorted(rest) == ["busy-2", "quiet-1", "shy-1"]

    async def test_runs_of_many_callers_are_claimed_once_each(self, store: CheckpointStore, worker: str) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        await asyncio.gather(*(store.create(make_run(name, caller_id=name)) for name in names))
        claimed: list[str] = []
        for limit in (100, 250, 250):
            claimed += get_run_ids(await store.claim_next(worker, agents=["agent"], limit=limit))
        assert Counter(claimed) == Counter(names)

    async def test_only_claim_next_skips_a_run_in_its_backoff(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1)))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        assert await list_run_ids(store, RunFilter(interrupted=True)) == ["run-1"]
        assert (await store.claim("run-1", worker)).strikes == 1

    async def test_the_backoff_between_strikes_holds_when_the_owner_dies(
        self, store: CheckpointStore, worker: str
    ) -> None:
        await store.release(await create_claimed(store, worker), Release(status=RunStatus.INTERRUPTED, strikes=2))
        deregistered = await add_worker(store)
        [claim] = await store.claim_next(deregistered, agents=["agent"], limit=1)
        assert claim.strikes == 3
        await store.deregister_worker(deregistered)
        assert (await load_record(store)).is_interrupted
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_ready_run_is_found_behind_many_callers_in_their_backoff(
        self, store: CheckpointStore, worker: str
    ) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        claims = await asyncio.gather(
            *(create_claimed(store, worker, make_run(name, caller_id=name)) for name in names)
        )
        later = Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1))
        await asyncio.gather(*(store.release(claim, later) for claim in claims))
        for name in (*names[::75], names[-1]):
            await store.create(make_run(f"{name}-ready", caller_id=f"{name}-ready"))
            assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == [f"{name}-ready"]
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_run_is_claimed_after_its_backoff(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=timedelta(milliseconds=200)))
        async with asyncio.timeout(self.timeout.total_seconds()):
            while not await store.claim_next(worker, agents=["agent"], limit=1):
                await store.wait_for_change(timedelta(milliseconds=20))
        assert (await load_record(store)).owner_alive

    async def test_a_child_is_claimed_only_after_its_parent(self, store: CheckpointStore, worker: str) -> None:
        parent = await create_claimed(store, worker, make_run("parent"))
        await store.create(make_run("child", parent_run_id="parent"))
        await store.create(make_run("grandchild", parent_run_id="child"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        await store.release(parent, Release(status=RunStatus.PARKED))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        parent = await store.claim("parent", worker, statuses={RunStatus.PARKED})
        await store.release(parent, Release(status=RunStatus.INTERRUPTED))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["parent"]
        await store.release(await store.claim("parent", worker, steal=True), Release(status=RunStatus.FAILED))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["child"]

    async def test_a_child_does_not_use_up_its_callers_turn(self, store: CheckpointStore, worker: str) -> None:
        await create_claimed(store, worker, make_run("parent", caller_id="other"))
        await store.create(make_run("child", parent_run_id="parent", caller_id="x"))
        await store.create(make_run("own", caller_id="x"))
        await store.create(make_run("next", caller_id="x"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == ["own"]

    async def test_an_orphan_is_claimed(self, store: CheckpointStore, worker: str) -> None:
        await store.create(make_run("orphan", parent_run_id="unknown"))
        with pytest.raises(RunNotFound):
            await store.load("unknown")
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["orphan"]

    async def test_concurrent_claimers_never_share_a_run(self, store: CheckpointStore) -> None:
        for n in range(40):
            await store.create(make_run(f"run-{n}", caller_id=f"caller-{n % 3}"))
        workers = [await add_worker(store) for _ in range(8)]

        async def drain(worker_id: str) -> list[str]:
            claimed: list[str] = []
            while claims := await store.claim_next(worker_id, agents=["agent"], limit=3):
                claimed += get_run_ids(claims)
            return claimed

        claimed = Counter(
            run_id for claimed_ids in await asyncio.gather(*map(drain, workers)) for run_id in claimed_ids
        )
        assert claimed == Counter({f"run-{n}": 1 for n in range(40)})
