"""Tests of release, remove and purge."""

import itertools
from datetime import timedelta

import pytest

from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunNotFound, StoreError, UnreadMail
from holdfast.checkpoint.record import RELEASE_STATUSES, TERMINAL_STATUSES, Notice, Release, RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    create_waiting,
    list_run_ids,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_entries,
    make_mail,
    make_run,
)


@pytest.mark.asyncio
class ReleaseTests(StoreUnderTest):
    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_released_run_has_the_values_of_its_release(
        self, store: RunStore, worker: str, status: RunStatus
    ) -> None:
        claim = await create_claimed(store, worker)
        release = Release(
            status=status,
            reason="because 'of' that ☂",
            entries=make_entries(1, b"last", b"entries"),
            progress=b"at the end",
            strikes=2,
            delay=timedelta(hours=1),
            retention=timedelta(hours=2),
        )
        await store.release(claim, release)
        record, journal = await load_contents(store)
        assert (record.status, record.reason, record.strikes) == (status, release.reason, 2)
        assert journal == [*make_run().entries, *release.entries]
        assert (record.progress, record.next_seq, record.size) == (b"at the end", 3, len(b"beginlastentries"))
        assert (record.owner, record.owner_alive, record.token) == (worker, False, claim.token)
        assert record.not_before - record.created_at >= timedelta(hours=1)
        assert record.expires_at is not None
        assert record.expires_at - record.not_before == timedelta(hours=1)
        assert record.is_terminal == (status in TERMINAL_STATUSES)
        assert record.is_interrupted == (status is RunStatus.INTERRUPTED)

    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_release_wakes_the_run_that_it_notifies(
        self, store: RunStore, worker: str, status: RunStatus
    ) -> None:
        await create_waiting(store, worker, make_run("parent"), wake_on=["child ☂"])
        claim = await create_claimed(store, worker, make_run("child", parent_run_id="parent"))
        mail = make_mail("mail 'of' the child", topic="child ☂", body=b"\0ended")
        await store.release(claim, Release(status=status, notify=Notice(run_id="parent", mail=mail)))
        stored = await store.load("parent")
        assert (await load_record(store, "child")).status is status
        assert stored.record.status is RunStatus.INTERRUPTED
        assert [(each.mail_id, each.topic, each.body) for each in stored.mail] == [
            (mail.mail_id, mail.topic, mail.body)
        ]

    async def test_a_refused_release_notifies_no_run(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker, make_run("parent"))
        claim = await create_claimed(store, worker, make_run("child", parent_run_id="parent"))
        notify = Notice(run_id="parent", mail=make_mail())
        await store.post("child", make_mail(topic="message"))
        with pytest.raises(UnreadMail):
            await store.release(claim, Release(status=RunStatus.DONE, wake_on=["message"], notify=notify))
        await store.claim("child", await add_worker(store), steal=True)
        with pytest.raises(ClaimLost):
            await store.release(claim, Release(status=RunStatus.DONE, notify=notify))
        assert list((await store.load("parent")).mail) == []

    @pytest.mark.parametrize("parent", ["ended", "gone"])
    async def test_a_release_that_notifies_an_ended_run_or_none_ends_the_claim(
        self, store: RunStore, worker: str, parent: str
    ) -> None:
        ended = await create_claimed(store, worker, make_run("ended"))
        await store.release(ended, Release(status=RunStatus.FAILED))
        claim = await create_claimed(store, worker, make_run("child"))
        await store.release(claim, Release(status=RunStatus.DONE, notify=Notice(run_id=parent, mail=make_mail())))
        assert (await load_record(store, "child")).status is RunStatus.DONE
        assert list((await store.load("ended")).mail) == []

    async def test_a_release_without_options_changes_only_the_status(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"more", progress=b"kept"))
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        record, journal = await load_contents(store)
        assert [entry.body for entry in journal] == [b"begin", b"more"]
        assert (record.progress, record.strikes, record.reason, record.expires_at) == (b"kept", 0, "", None)
        assert [claim.run_id for claim in await store.claim_next(worker, agents=["agent"], limit=1)] == ["run-1"]

    async def test_a_refused_release_leaves_the_claim_as_it_was(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        before = await load_contents(store)
        with pytest.raises(StoreError):
            await store.release(claim, Release(status=RunStatus.DONE, entries=make_entries(7, b"out of order")))
        assert await load_contents(store) == before
        await store.append(claim, make_append(1, b"more"))

    async def test_a_terminal_or_parked_run_is_not_claimed_next(self, store: RunStore, worker: str) -> None:
        for status in sorted(TERMINAL_STATUSES | {RunStatus.PARKED}):
            await store.release(await create_claimed(store, worker, make_run(f"run-{status}")), Release(status=status))
        assert list(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        assert await list_run_ids(store, RunFilter(interrupted=True)) == []


@pytest.mark.asyncio
class RemoveTests(StoreUnderTest):
    async def test_a_removed_run_is_gone(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"more"))
        await create_claimed(store, worker, make_run("run-2"))
        await store.remove("run-1", claim=claim)
        with pytest.raises(RunNotFound):
            await store.load("run-1")
        with pytest.raises(RunNotFound):
            await store.claim("run-1", worker)
        assert await list_run_ids(store) == ["run-2"]

    async def test_a_new_run_of_a_removed_id_starts_with_nothing_of_the_old(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"old", progress=b"old"))
        await store.request_cancel("run-1")
        await store.remove("run-1", claim=claim)
        await store.create(make_run("run-1", b"new"))
        record, journal = await load_contents(store)
        assert [entry.body for entry in journal] == [b"new"]
        assert (record.next_seq, record.size, record.progress) == (1, len(b"new"), b"progress")
        assert (record.cancel_requested, record.strikes, record.owner) == (False, 0, None)

    async def test_a_run_that_is_not_executed_is_removed_without_a_claim(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("queued"))
        for status in sorted(RELEASE_STATUSES):
            await store.release(await create_claimed(store, worker, make_run(status)), Release(status=status))
        other = await add_worker(store)
        await create_claimed(store, other, make_run("abandoned"))
        await store.deregister_worker(other)
        for run_id in ("queued", *sorted(RELEASE_STATUSES), "abandoned"):
            await store.remove(run_id)
        assert await list_run_ids(store) == []

    async def test_an_executed_run_is_not_removed_without_its_claim(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        before = await load_contents(store)
        with pytest.raises(RunBusy) as busy:
            await store.remove("run-1")
        assert (busy.value.run_id, busy.value.owner) == ("run-1", worker)
        assert await load_contents(store) == before
        await store.append(claim, make_append(1, b"more"))

    async def test_removing_an_unknown_run_is_fine(self, store: RunStore) -> None:
        await store.remove("run-1")
        await store.create(make_run())
        await store.remove("run-1")
        await store.create(make_run("orphan", parent_run_id="run-1"))
        await store.remove("run-1")
        assert await list_run_ids(store) == ["orphan"]

    async def test_the_runs_a_removed_run_started_go_with_it(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker, make_run("parent"))
        await store.create(make_run("child", parent_run_id="parent"))
        grandchild = await create_claimed(store, worker, make_run("grandchild", parent_run_id="child"))
        await store.create(make_run("great-grandchild", parent_run_id="grandchild"))
        await store.create(make_run("unrelated"))
        await store.remove("parent", claim=claim)
        assert await list_run_ids(store) == ["unrelated"]
        with pytest.raises(StoreError):
            await store.append(grandchild, make_append(1, b"late"))

    async def test_removing_a_child_leaves_its_parent(self, store: RunStore) -> None:
        await store.create(make_run("parent"))
        await store.create(make_run("child", parent_run_id="parent"))
        await store.create(make_run("sibling", parent_run_id="parent"))
        await store.remove("child")
        assert await list_run_ids(store) == ["parent", "sibling"]


@pytest.mark.asyncio
class PurgeTests(StoreUnderTest):
    async def test_only_terminal_expired_runs_are_purged(self, store: RunStore, worker: str) -> None:
        for status in sorted(TERMINAL_STATUSES):
            for name, retention in (("expired", timedelta(0)), ("kept", timedelta(hours=1)), ("unlimited", None)):
                claim = await create_claimed(store, worker, make_run(f"{status}-{name}"))
                await store.release(claim, Release(status=status, retention=retention))
        for status in sorted(RELEASE_STATUSES - TERMINAL_STATUSES):
            await store.release(
                await create_claimed(store, worker, make_run(status)), Release(status=status, retention=timedelta(0))
            )
        await store.create(make_run("queued"))
        await create_claimed(store, worker, make_run("running"))
        before = await list_run_ids(store)
        assert await store.purge() == len(TERMINAL_STATUSES)
        assert await list_run_ids(store) == [run_id for run_id in before if not run_id.endswith("-expired")]
        assert await store.purge() == 0

    async def test_a_purge_removes_no_more_than_its_limit(self, store: RunStore, worker: str) -> None:
        for n in range(5):
            claim = await create_claimed(store, worker, make_run(f"run-{n}"))
            await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(0)))
        assert await store.purge(limit=2) == 2
        assert len(await list_run_ids(store)) == 3
        assert await store.purge(limit=2) == 2
        assert await store.purge(limit=2) == 1
        assert await list_run_ids(store) == []

    async def test_the_runs_a_purged_run_started_go_with_it(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker, make_run("parent"))
        await store.create(make_run("child", parent_run_id="parent"))
        await store.create(make_run("grandchild", parent_run_id="child"))
        await store.create(make_run("unrelated"))
        await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(0)))
        assert await store.purge() >= 1
        assert await list_run_ids(store) == ["unrelated"]

    async def test_a_child_is_kept_while_its_parent_may_resume(self, store: RunStore, worker: str) -> None:
        parents = {
            status: await create_claimed(store, worker, make_run(status))
            for status in sorted(RELEASE_STATUSES | {RunStatus.RUNNING})
        }
        for status, child_status in itertools.product(parents, sorted(TERMINAL_STATUSES)):
            child = await create_claimed(
                store, worker, make_run(f"{child_status}-child-of-{status}", parent_run_id=status)
            )
            await store.release(child, Release(status=child_status, retention=timedelta(0)))
        for status, claim in parents.items():
            if status is not RunStatus.RUNNING:
                await store.release(claim, Release(status=status))
        before = await list_run_ids(store)
        assert await store.purge() == len(TERMINAL_STATUSES)
        assert await list_run_ids(store) == [run_id for run_id in before if not run_id.endswith("-child-of-done")]
        for status in parents.keys() - {RunStatus.DONE}:
            await store.remove(status, claim=parents[status])
        assert await list_run_ids(store) == [RunStatus.DONE], "children are removed with their parent"

    async def test_a_child_is_purged_if_its_parent_is_not_in_the_store(self, store: RunStore, worker: str) -> None:
        child = await create_claimed(store, worker, make_run("child", parent_run_id="elsewhere"))
        await store.release(child, Release(status=RunStatus.FAILED, retention=timedelta(0)))
        assert await store.purge() == 1
        assert await list_run_ids(store) == []

    async def test_a_purged_id_may_be_used_again(self, store: RunStore, worker: str) -> None:
        await store.release(await create_claimed(store, worker), Release(status=RunStatus.DONE, retention=timedelta(0)))
        await store.purge()
        await store.create(make_run("run-1", b"new"))
        assert await load_bodies(store) == [b"new"]
        assert (await load_record(store)).expires_at is None
