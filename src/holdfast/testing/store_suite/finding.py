"""Clauses about finding runs: listings and the next ones to take."""

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.lifecycle import ENDINGS, Status
from holdfast.checkpoint.record import Ending, RunFilter
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.subject import (
    StoreUnderTest,
    a_run,
    a_write,
    begun,
    contents,
    enlisted,
    ids,
    listed,
    record_of,
)


@pytest.mark.asyncio
class ListingClauses(StoreUnderTest):
    async def test_an_empty_store_lists_nothing(self, store: CheckpointStore) -> None:
        assert await listed(store) == []

    async def test_runs_are_listed_oldest_first(self, store: CheckpointStore, worker: str) -> None:
        for run_id in ("zebra", "apple", "Mango", "10", "9"):
            claim = await begun(store, worker, a_run(run_id))
            await store.append(claim, a_write(1, b"more"))
            await store.settle(claim, Ending(status=Status.INTERRUPTED))
        await store.claim("apple", worker)
        assert await listed(store) == ["zebra", "apple", "Mango", "10", "9"]

    async def test_a_listed_record_is_the_one_that_load_gives(self, store: CheckpointStore, worker: str) -> None:
        await store.create(a_run("queued", meta=b"\0\xff", parent_run_id="gone"))
        await store.append(await begun(store, worker, a_run("running")), a_write(1, b"more", progress=b"\0\xff"))
        for status in sorted(ENDINGS):
            claim = await begun(store, worker, a_run(status))
            await store.settle(claim, Ending(status=status, reason="because", keep=timedelta(hours=1)))
        records = [record async for record in store.records()]
        assert len(records) == 2 + len(ENDINGS)
        for record in records:
            assert record == (await contents(store, record.run_id))[0]

    async def test_every_filter_that_is_set_has_to_fit(self, store: CheckpointStore, worker: str) -> None:
        await store.create(a_run("one", agent_name="A", caller_id="x"))
        await store.create(a_run("two", agent_name="A", caller_id="y", parent_run_id="one"))
        await begun(store, worker, a_run("three", agent_name="B", caller_id="x", parent_run_id="one"))
        parked = await begun(store, worker, a_run("four", agent_name="B", caller_id="y"))
        await store.settle(parked, Ending(status=Status.PARKED))
        for wanted, expected in (
            (RunFilter(), ["one", "two", "three", "four"]),
            (RunFilter(agent_name="A"), ["one", "two"]),
            (RunFilter(caller_id="x"), ["one", "three"]),
            (RunFilter(parent_run_id="one"), ["two", "three"]),
            (RunFilter(statuses=frozenset({Status.QUEUED, Status.PARKED})), ["one", "two", "four"]),
            (RunFilter(statuses=frozenset()), []),
            (RunFilter(interrupted=True), ["one", "two"]),
            (RunFilter(agent_name="B", caller_id="x", parent_run_id="one"), ["three"]),
            (RunFilter(agent_name="B", interrupted=True), []),
            (RunFilter(statuses=frozenset({Status.PARKED}), interrupted=True), []),
            (RunFilter(agent_name="nobody"), []),
        ):
            assert await listed(store, wanted) == expected, wanted

    async def test_what_no_live_worker_drives_is_listed_as_interrupted(
        self, store: CheckpointStore, worker: str
    ) -> None:
        gone = await enlisted(store)
        await store.create(a_run("queued"))
        await begun(store, gone, a_run("abandoned"))
        await begun(store, worker, a_run("driven"))
        for status in sorted(ENDINGS):
            await store.settle(await begun(store, worker, a_run(status)), Ending(status=status))
        await store.discharge(gone)
        assert await listed(store, RunFilter(interrupted=True)) == ["queued", "abandoned", "interrupted"]

    async def test_a_listing_goes_on_while_its_runs_change(self, store: CheckpointStore, worker: str) -> None:
        names = [f"run-{n:03}" for n in range(120)]
        for name in names:
            await store.create(a_run(name))
        seen = []
        async for record in store.records(RunFilter(interrupted=True)):
            seen.append(record.run_id)
            await store.remove(record.run_id, claim=await store.claim(record.run_id, worker))
            await store.create(a_run(f"new-{record.run_id}", agent_name="other"))
            if len(seen) > 2 * len(names):
                break
        assert [run_id for run_id in seen if run_id in names] == names

    async def test_a_listing_may_be_left_early(self, store: CheckpointStore) -> None:
        for n in range(50):
            await store.create(a_run(f"run-{n}"))
        async for record in store.records():
            assert record.run_id == "run-0"
            break
        await store.remove("run-0")
        assert len(await listed(store)) == 49


@pytest.mark.asyncio
class ClaimNextClauses(StoreUnderTest):
    async def test_interrupted_runs_are_taken(self, store: CheckpointStore, worker: str) -> None:
        gone = await enlisted(store)
        await store.create(a_run("queued"))
        await begun(store, gone, a_run("abandoned"))
        await store.settle(await begun(store, gone, a_run("released")), Ending(status=Status.INTERRUPTED))
        await store.discharge(gone)
        claims = await store.claim_next(worker, agents=["agent"], limit=10)
        assert sorted(ids(claims)) == ["abandoned", "queued", "released"]
        for claim in claims:
            record = await record_of(store, claim.run_id)
            assert (record.status, record.owner, record.owner_alive) == (Status.RUNNING, worker, True)
            assert (record.token, record.strikes) == (claim.token, claim.strikes)
            assert claim.strikes == (2 if claim.run_id == "abandoned" else 1)
            await store.append(claim, a_write(1, b"more"))

    async def test_a_driven_run_is_not_taken(self, store: CheckpointStore, worker: str) -> None:
        await begun(store, worker)
        assert ids(await store.claim_next(await enlisted(store), agents=["agent"], limit=10)) == []
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_only_runs_of_the_agents_asked_for_are_taken(self, store: CheckpointStore, worker: str) -> None:
        for name in ("A", "B", "C"):
            await store.create(a_run(f"run-{name}", agent_name=name))
        assert ids(await store.claim_next(worker, agents=[], limit=10)) == []
        assert ids(await store.claim_next(worker, agents=["a"], limit=10)) == []
        assert sorted(ids(await store.claim_next(worker, agents={"C", "A", "D"}, limit=10))) == ["run-A", "run-C"]

    async def test_no_more_than_the_limit_are_taken(self, store: CheckpointStore, worker: str) -> None:
        for n in range(5):
            await store.create(a_run(f"run-{n}"))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=0)) == []
        assert ids(await store.claim_next(worker, agents=["agent"], limit=2)) == ["run-0", "run-1"]
        assert len(await listed(store, RunFilter(interrupted=True))) == 3

    async def test_the_oldest_of_each_caller_comes_before_the_second_of_any(
        self, store: CheckpointStore, worker: str
    ) -> None:
        for n in range(5):
            await store.create(a_run(f"busy-{n}", caller_id="busy"))
        for caller in ("quiet", "shy"):
            for n in range(2):
                await store.create(a_run(f"{caller}-{n}", caller_id=caller))
        first = ids(await store.claim_next(worker, agents=["agent"], limit=4))
        assert sorted(first) == ["busy-0", "busy-1", "quiet-0", "shy-0"]
        rest = ids(await store.claim_next(worker, agents=["agent"], limit=3))
        assert sorted(rest) == ["busy-2", "quiet-1", "shy-1"]

    async def test_of_many_callers_each_run_is_given_once(self, store: CheckpointStore, worker: str) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        await asyncio.gather(*(store.create(a_run(name, caller_id=name)) for name in names))
        taken: list[str] = []
        for limit in (100, 250, 250):
            taken += ids(await store.claim_next(worker, agents=["agent"], limit=limit))
        assert Counter(taken) == Counter(names)

    async def test_a_run_in_its_backoff_is_left_alone_by_claim_next_only(
        self, store: CheckpointStore, worker: str
    ) -> None:
        claim = await begun(store, worker)
        await store.settle(claim, Ending(status=Status.INTERRUPTED, delay=timedelta(hours=1)))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        assert await listed(store, RunFilter(interrupted=True)) == ["run-1"]
        assert (await store.claim("run-1", worker)).strikes == 1

    async def test_the_backoff_between_strikes_holds_when_the_owner_dies(
        self, store: CheckpointStore, worker: str
    ) -> None:
        await store.settle(await begun(store, worker), Ending(status=Status.INTERRUPTED, strikes=2))
        gone = await enlisted(store)
        [claim] = await store.claim_next(gone, agents=["agent"], limit=1)
        assert claim.strikes == 3
        await store.discharge(gone)
        assert (await record_of(store)).interrupted
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_ready_run_is_found_behind_many_callers_in_their_backoff(
        self, store: CheckpointStore, worker: str
    ) -> None:
        names = [f"run-{n:03}" for n in range(300)]
        claims = await asyncio.gather(*(begun(store, worker, a_run(name, caller_id=name)) for name in names))
        later = Ending(status=Status.INTERRUPTED, delay=timedelta(hours=1))
        await asyncio.gather(*(store.settle(claim, later) for claim in claims))
        for name in (*names[::75], names[-1]):
            await store.create(a_run(f"{name}-ready", caller_id=f"{name}-ready"))
            assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == [f"{name}-ready"]
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []

    async def test_a_run_whose_backoff_is_over_is_taken(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker)
        await store.settle(claim, Ending(status=Status.INTERRUPTED, delay=timedelta(milliseconds=200)))
        async with asyncio.timeout(self.patience.total_seconds()):
            while not await store.claim_next(worker, agents=["agent"], limit=1):
                await store.changed(timedelta(milliseconds=20))
        assert (await record_of(store)).owner_alive

    async def test_a_child_is_left_to_its_parent_until_that_is_over(self, store: CheckpointStore, worker: str) -> None:
        parent = await begun(store, worker, a_run("parent"))
        await store.create(a_run("child", parent_run_id="parent"))
        await store.create(a_run("grandchild", parent_run_id="child"))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        await store.settle(parent, Ending(status=Status.PARKED))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        parent = await store.claim("parent", worker, statuses={Status.PARKED})
        await store.settle(parent, Ending(status=Status.INTERRUPTED))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["parent"]
        await store.settle(await store.claim("parent", worker, steal=True), Ending(status=Status.FAILED))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["child"]

    async def test_a_child_does_not_use_up_its_callers_turn(self, store: CheckpointStore, worker: str) -> None:
        await begun(store, worker, a_run("parent", caller_id="other"))
        await store.create(a_run("child", parent_run_id="parent", caller_id="x"))
        await store.create(a_run("own", caller_id="x"))
        await store.create(a_run("next", caller_id="x"))
        assert ids(await store.claim_next(worker, agents=["agent"], limit=1)) == ["own"]

    async def test_an_orphan_is_taken(self, store: CheckpointStore, worker: str) -> None:
        await store.create(a_run("orphan", parent_run_id="never-was"))
        with pytest.raises(RunNotFound):
            await store.load("never-was")
        assert ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["orphan"]

    async def test_claimers_at_once_never_share_a_run(self, store: CheckpointStore) -> None:
        for n in range(40):
            await store.create(a_run(f"run-{n}", caller_id=f"caller-{n % 3}"))
        workers = [await enlisted(store) for _ in range(8)]

        async def drain(worker_id: str) -> list[str]:
            taken: list[str] = []
            while claims := await store.claim_next(worker_id, agents=["agent"], limit=3):
                taken += ids(claims)
            return taken

        taken = Counter(run_id for drained in await asyncio.gather(*map(drain, workers)) for run_id in drained)
        assert taken == Counter({f"run-{n}": 1 for n in range(40)})
