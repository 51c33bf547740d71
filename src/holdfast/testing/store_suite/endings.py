"""Clauses about the ways a claim ends and a run goes: settle, remove, purge."""

import itertools
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import RunBusy, RunNotFound, StoreError
from holdfast.checkpoint.lifecycle import ENDINGS, OVER, Status
from holdfast.checkpoint.record import Ending, RunFilter
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.subject import (
    StoreUnderTest,
    a_run,
    a_write,
    begun,
    bodies_of,
    contents,
    enlisted,
    entries,
    listed,
    record_of,
)


@pytest.mark.asyncio
class SettleClauses(StoreUnderTest):
    @pytest.mark.parametrize("status", sorted(ENDINGS))
    async def test_a_settled_run_is_what_its_ending_says(
        self, store: CheckpointStore, worker: str, status: Status
    ) -> None:
        claim = await begun(store, worker)
        ending = Ending(
            status=status,
            reason="because 'of' that ☂",
            entries=entries(1, b"last", b"words"),
            progress=b"in the end",
            strikes=2,
            delay=timedelta(hours=1),
            keep=timedelta(hours=2),
        )
        await store.settle(claim, ending)
        record, journal = await contents(store)
        assert (record.status, record.reason, record.strikes) == (status, ending.reason, 2)
        assert journal == [*a_run().entries, *ending.entries]
        assert (record.progress, record.next_seq, record.size) == (b"in the end", 3, len(b"beginlastwords"))
        assert (record.owner, record.owner_alive, record.token) == (worker, False, claim.token)
        assert record.not_before - record.created_at >= timedelta(hours=1)
        assert record.expires_at is not None
        assert record.expires_at - record.not_before == timedelta(hours=1)
        assert record.over == (status in OVER)
        assert record.interrupted == (status is Status.INTERRUPTED)

    async def test_an_ending_that_says_little_changes_little(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker)
        await store.append(claim, a_write(1, b"more", progress=b"kept"))
        await store.settle(claim, Ending(status=Status.INTERRUPTED))
        record, journal = await contents(store)
        assert [entry.body for entry in journal] == [b"begin", b"more"]
        assert (record.progress, record.strikes, record.reason, record.expires_at) == (b"kept", 0, "", None)
        assert [claim.run_id for claim in await store.claim_next(worker, agents=["agent"], limit=1)] == ["run-1"]

    async def test_a_refused_ending_leaves_the_claim_as_it_was(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker)
        before = await contents(store)
        with pytest.raises(StoreError):
            await store.settle(claim, Ending(status=Status.DONE, entries=entries(7, b"out of order")))
        assert await contents(store) == before
        await store.append(claim, a_write(1, b"goes on"))

    async def test_a_run_that_is_over_is_no_candidate(self, store: CheckpointStore, worker: str) -> None:
        for status in sorted(OVER | {Status.PARKED}):
            await store.settle(await begun(store, worker, a_run(f"run-{status}")), Ending(status=status))
        assert list(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        assert await listed(store, RunFilter(interrupted=True)) == []


@pytest.mark.asyncio
class RemoveClauses(StoreUnderTest):
    async def test_a_removed_run_is_gone(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker)
        await store.append(claim, a_write(1, b"more"))
        await begun(store, worker, a_run("run-2"))
        await store.remove("run-1", claim=claim)
        with pytest.raises(RunNotFound):
            await store.load("run-1")
        with pytest.raises(RunNotFound):
            await store.claim("run-1", worker)
        assert await listed(store) == ["run-2"]

    async def test_a_new_run_of_a_removed_id_starts_with_nothing_of_the_old(
        self, store: CheckpointStore, worker: str
    ) -> None:
        claim = await begun(store, worker)
        await store.append(claim, a_write(1, b"old", progress=b"old"))
        await store.request_cancel("run-1")
        await store.remove("run-1", claim=claim)
        await store.create(a_run("run-1", b"new"))
        record, journal = await contents(store)
        assert [entry.body for entry in journal] == [b"new"]
        assert (record.next_seq, record.size, record.progress) == (1, len(b"new"), b"progress")
        assert (record.cancel_requested, record.strikes, record.owner) == (False, 0, None)

    async def test_a_run_nobody_drives_is_removed_without_a_claim(self, store: CheckpointStore, worker: str) -> None:
        await store.create(a_run("queued"))
        for status in sorted(ENDINGS):
            await store.settle(await begun(store, worker, a_run(status)), Ending(status=status))
        other = await enlisted(store)
        await begun(store, other, a_run("abandoned"))
        await store.discharge(other)
        for run_id in ("queued", *sorted(ENDINGS), "abandoned"):
            await store.remove(run_id)
        assert await listed(store) == []

    async def test_a_run_that_is_driven_is_not_removed_without_its_claim(
        self, store: CheckpointStore, worker: str
    ) -> None:
        claim = await begun(store, worker)
        before = await contents(store)
        with pytest.raises(RunBusy) as busy:
            await store.remove("run-1")
        assert (busy.value.run_id, busy.value.owner) == ("run-1", worker)
        assert await contents(store) == before
        await store.append(claim, a_write(1, b"goes on"))

    async def test_removing_a_run_that_is_not_there_is_fine(self, store: CheckpointStore) -> None:
        await store.remove("run-1")
        await store.create(a_run())
        await store.remove("run-1")
        await store.remove("run-1")

    async def test_the_runs_a_removed_run_started_go_with_it(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker, a_run("parent"))
        await store.create(a_run("child", parent_run_id="parent"))
        grandchild = await begun(store, worker, a_run("grandchild", parent_run_id="child"))
        await store.create(a_run("great-grandchild", parent_run_id="grandchild"))
        await store.create(a_run("stranger"))
        await store.remove("parent", claim=claim)
        assert await listed(store) == ["stranger"]
        with pytest.raises(StoreError):
            await store.append(grandchild, a_write(1, b"late"))

    async def test_removing_a_child_leaves_its_parent(self, store: CheckpointStore) -> None:
        await store.create(a_run("parent"))
        await store.create(a_run("child", parent_run_id="parent"))
        await store.create(a_run("sibling", parent_run_id="parent"))
        await store.remove("child")
        assert await listed(store) == ["parent", "sibling"]


@pytest.mark.asyncio
class PurgeClauses(StoreUnderTest):
    async def test_what_is_over_and_expired_is_purged_and_nothing_else(
        self, store: CheckpointStore, worker: str
    ) -> None:
        for status in sorted(OVER):
            for name, keep in (("expired", timedelta(0)), ("kept", timedelta(hours=1)), ("for-ever", None)):
                claim = await begun(store, worker, a_run(f"{status}-{name}"))
                await store.settle(claim, Ending(status=status, keep=keep))
        for status in sorted(ENDINGS - OVER):
            await store.settle(await begun(store, worker, a_run(status)), Ending(status=status, keep=timedelta(0)))
        await store.create(a_run("queued"))
        await begun(store, worker, a_run("running"))
        before = await listed(store)
        assert await store.purge() == len(OVER)
        assert await listed(store) == [run_id for run_id in before if not run_id.endswith("-expired")]
        assert await store.purge() == 0

    async def test_a_purge_removes_no_more_than_its_limit(self, store: CheckpointStore, worker: str) -> None:
        for n in range(5):
            claim = await begun(store, worker, a_run(f"run-{n}"))
            await store.settle(claim, Ending(status=Status.DONE, keep=timedelta(0)))
        assert await store.purge(limit=2) == 2
        assert len(await listed(store)) == 3
        assert await store.purge(limit=2) == 2
        assert await store.purge(limit=2) == 1
        assert await listed(store) == []

    async def test_the_runs_a_purged_run_started_go_with_it(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker, a_run("parent"))
        await store.create(a_run("child", parent_run_id="parent"))
        await store.create(a_run("grandchild", parent_run_id="child"))
        await store.create(a_run("stranger"))
        await store.settle(claim, Ending(status=Status.DONE, keep=timedelta(0)))
        assert await store.purge() >= 1
        assert await listed(store) == ["stranger"]

    async def test_what_a_child_left_is_kept_while_its_parent_may_go_on(
        self, store: CheckpointStore, worker: str
    ) -> None:
        parents = {status: await begun(store, worker, a_run(status)) for status in sorted(ENDINGS | {Status.RUNNING})}
        for status, child_end in itertools.product(parents, sorted(OVER)):
            child = await begun(store, worker, a_run(f"{child_end}-child-of-{status}", parent_run_id=status))
            await store.settle(child, Ending(status=child_end, keep=timedelta(0)))
        for status, claim in parents.items():
            if status is not Status.RUNNING:
                await store.settle(claim, Ending(status=status))
        before = await listed(store)
        assert await store.purge() == len(OVER)
        assert await listed(store) == [run_id for run_id in before if not run_id.endswith("-child-of-done")]
        for status in parents.keys() - {Status.DONE}:
            await store.remove(status, claim=parents[status])
        assert await listed(store) == [Status.DONE], "they go with their parent"

    async def test_what_a_child_left_is_purged_if_its_parent_is_not_there(
        self, store: CheckpointStore, worker: str
    ) -> None:
        child = await begun(store, worker, a_run("child", parent_run_id="elsewhere"))
        await store.settle(child, Ending(status=Status.FAILED, keep=timedelta(0)))
        assert await store.purge() == 1
        assert await listed(store) == []

    async def test_a_purged_id_may_be_used_again(self, store: CheckpointStore, worker: str) -> None:
        await store.settle(await begun(store, worker), Ending(status=Status.DONE, keep=timedelta(0)))
        await store.purge()
        await store.create(a_run("run-1", b"new"))
        assert await bodies_of(store) == [b"new"]
        assert (await record_of(store)).expires_at is None
