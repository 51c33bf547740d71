"""Tests of durable stores: reopening, several stores at one location, damage."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import ClassVar

import pytest
import pytest_asyncio
from msgspec.structs import replace

from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunDamaged, StoreError, UnreadMail
from holdfast.checkpoint.record import RELEASE_STATUSES, Release, RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import ProcessIdentity
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    create_waiting,
    get_run_ids,
    list_run_ids,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_mail,
    make_run,
    make_worker,
    read_mail_ids,
)
from holdfast.testing.store_tests.notice_tests import CHANGES, Change, is_woken
from holdfast.testing.store_tests.open_close_tests import insert_row, open_table, read_rows


class DurableStoreUnderTest(StoreUnderTest):
    """What a subclass defines for a durable store, beside `factory` and `location`."""

    #: How often the store sends heartbeats for its workers. Zero: never.
    heartbeat_interval: ClassVar[timedelta] = timedelta(0)

    def damage(self, location: str, run_id: str, body: bytes) -> None:
        """Flip a bit of `body`, the run's second entry, in the files of the closed store."""
        raise NotImplementedError("override `damage`: flip a bit of one stored entry, as a failing disk does")

    async def wait_until_idle(self, location: str, killed: ProcessIdentity) -> None:
        """Return when a server has finished the requests of a killed process. A store without a server has none.

        `store_process.format_connection_name` gives the name of that process's connections.
        """


@pytest.mark.asyncio
class ReopenTests(DurableStoreUnderTest):
    async def test_the_store_is_marked_durable(self, store: RunStore) -> None:
        assert store.durable

    async def test_rows_of_tables_are_kept_over_reopening(self, store: RunStore, location: str) -> None:
        await open_table(store.tables(), "first")
        await insert_row(store.tables(), "first", "kept")
        await store.close()
        reopened = self.build(location)
        await open_table(reopened.tables(), "first")  # needs no open store
        assert await read_rows(reopened.tables(), "first") == [("kept",)]
        await reopened.close()

    async def test_all_runs_are_kept_over_reopening(self, store: RunStore, worker: str, location: str) -> None:
        await store.create(make_run("queued", b"\0\xff", info=b"\0\xff", progress=b"", parent_run_id="parent"))
        rewritten = await create_claimed(store, worker, make_run("rewritten", b"zero", b"one"))
        await store.append(rewritten, make_append(2, b"compacted", b"new", rewrite=True, step_finished=True))
        await store.append(rewritten, make_append(4, b"newer", progress=b"further"))
        await store.request_cancel("rewritten")
        for status in sorted(RELEASE_STATUSES):
            claim = await create_claimed(store, worker, make_run(status, caller_id=status, agent_name=status))
            await store.release(
                claim,
                Release(
                    status=status, reason="because", strikes=3, delay=timedelta(hours=1), retention=timedelta(hours=2)
                ),
            )
        await store.remove("done")
        await store.deregister_worker(worker)
        names = await list_run_ids(store)
        before = [await load_contents(store, name) for name in names]
        await store.close()
        async with self.open_store(location) as store:
            assert await list_run_ids(store) == names
            assert [await load_contents(store, name) for name in names] == before

    async def test_mail_and_waits_are_kept_over_reopening(self, store: RunStore, worker: str, location: str) -> None:
        await create_waiting(store, worker, make_run("for mail", labels={"team": "red"}), wake_on=["message"])
        later = (await load_record(store, "for mail")).created_at + timedelta(hours=1)
        await create_waiting(store, worker, make_run("for a time"), wake_at=later)
        await store.create(make_run("later", not_before=later))
        claim = await create_claimed(store, worker, make_run("sent"))
        for name in ("used", "second", "first"):
            await store.post("sent", make_mail(name, body=name.encode()))
        await store.append(claim, make_append(1, b"used", consumed=["used"]))
        await store.deregister_worker(worker)
        before = [await store.load(run_id) for run_id in await list_run_ids(store)]
        cursor = (await store.list_page(limit=1)).cursor
        await store.close()
        async with self.open_store(location) as store:
            assert [await store.load(run_id) for run_id in await list_run_ids(store)] == before
            assert await read_mail_ids(store, "sent") == ["second", "first"]
            again = await store.post("sent", make_mail("used"))
            assert (again.is_new, again.consumed) == (False, True)
            assert [record.run_id for record in (await store.list_page(limit=1, cursor=cursor)).records] == ["later"]
            await store.post("for mail", make_mail())
            worker = await add_worker(store)
            claims = await store.claim_next(worker, agents=["agent"], limit=10)
            assert sorted(get_run_ids(claims)) == ["for mail", "sent"]

    async def test_runs_continue_after_reopening(self, store: RunStore, worker: str, location: str) -> None:
        old = await create_claimed(store, worker)
        await store.append(old, make_append(1, b"before"))
        await store.release(old, Release(status=RunStatus.INTERRUPTED))
        await store.close()
        async with self.open_store(location) as store:
            worker = await add_worker(store)
            [new] = await store.claim_next(worker, agents=["agent"], limit=1)
            with pytest.raises(ClaimLost):
                await store.append(old, make_append(2, b"late"))
            await store.append(new, make_append(2, b"after"))
            assert await load_bodies(store) == [b"begin", b"before", b"after"]

    async def test_a_worker_keeps_its_claims_when_its_store_is_closed(
        self, store: RunStore, worker: str, location: str
    ) -> None:
        await create_claimed(store, worker)
        await store.close()
        async with self.open_store(location) as other:
            assert (await load_record(other)).owner_alive
            assert not await other.claim_next(await add_worker(other), agents=["agent"], limit=1)
            await other.deregister_worker(worker)
            assert not (await load_record(other)).owner_alive

    async def test_tokens_grow_over_removal_and_reopening(self, location: str) -> None:
        tokens = []
        for _ in range(3):
            async with self.open_store(location) as store:
                claim = await create_claimed(store, await add_worker(store))
                tokens.append(claim.token)
                await store.remove("run-1", claim=claim)
        assert tokens[0] < tokens[1] < tokens[2]

    async def test_backoff_and_expiry_hold_over_reopening(self, store: RunStore, worker: str, location: str) -> None:
        later = await create_claimed(store, worker, make_run("later"))
        await store.release(later, Release(status=RunStatus.INTERRUPTED, delay=timedelta(hours=1)))
        for name, retention in (("expired", timedelta(0)), ("kept", timedelta(hours=1))):
            claim = await create_claimed(store, worker, make_run(name))
            await store.release(claim, Release(status=RunStatus.FAILED, retention=retention))
        await store.close()
        async with self.open_store(location) as store:
            worker = await add_worker(store)
            assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
            assert await store.purge() == 1
            assert await list_run_ids(store) == ["later", "kept"]

    async def test_closing_finishes_the_running_writes(self, store: RunStore, worker: str, location: str) -> None:
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(30)]
        writes = [asyncio.ensure_future(store.append(claim, make_append(1, b"more"))) for claim in claims]
        await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        await store.close()
        async with self.open_store(location) as store:
            results = await asyncio.gather(*writes, return_exceptions=True)
            for claim, result in zip(claims, results, strict=True):
                assert result is None or isinstance(result, StoreError)
                expected = [b"begin"] if result else [b"begin", b"more"]
                assert await load_bodies(store, claim.run_id) == expected, result


@pytest.mark.asyncio
class SharedStoreTests(DurableStoreUnderTest):
    @pytest_asyncio.fixture
    async def other(self, store: RunStore, location: str) -> AsyncIterator[RunStore]:
        """A second open store at the location of the first."""
        async with self.open_store(location) as other:
            yield other

    async def test_two_stores_at_one_location_see_the_same_runs(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"more", progress=b"further"))
        assert await load_contents(other) == await load_contents(store)
        new_owner = await add_worker(other)
        with pytest.raises(RunBusy):
            await other.claim("run-1", new_owner)
        stolen = await other.claim("run-1", new_owner, steal=True)
        assert stolen.token > claim.token
        with pytest.raises(ClaimLost):
            await store.append(claim, make_append(2, b"late"))
        await other.append(stolen, make_append(2, b"by the other"))
        assert await load_bodies(store) == [b"begin", b"more", b"by the other"]
        await other.remove("run-1", claim=stolen)
        assert await list_run_ids(store) == []

    async def test_two_stores_append_in_turn_under_one_claim(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"one"))
        await other.request_cancel("run-1")
        await store.append(claim, make_append(2, b"two"))
        await other.append(claim, make_append(3, b"three"))
        await store.append(claim, make_append(4, b"four"))
        for each in (store, other):
            assert await load_bodies(each) == [b"begin", b"one", b"two", b"three", b"four"]
            assert (await load_record(each)).cancel_requested

    async def test_two_stores_rewrite_in_turn_under_one_claim(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"one"))
        await other.append(claim, make_append(2, b"compacted", rewrite=True))
        await store.append(claim, make_append(3, b"three"))
        assert await load_bodies(other) == [b"compacted", b"three"]
        await store.append(claim, make_append(4, b"all", rewrite=True))
        await other.append(claim, make_append(5, b"five"))
        for each in (store, other):
            assert await load_bodies(each) == [b"all", b"five"]

    async def test_a_run_that_another_store_removed_or_replaced_is_lost(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        for replaced in (False, True):
            claim = await create_claimed(store, worker)
            await store.append(claim, make_append(1, b"one"))
            await other.remove("run-1", claim=claim)
            if replaced:
                claim_of_other = await create_claimed(other, await add_worker(other))
            with pytest.raises(ClaimLost):
                await store.append(claim, make_append(2, b"late"))
        await other.append(claim_of_other, make_append(1, b"new"))
        assert await load_bodies(store) == [b"begin", b"new"]

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
    async def test_a_change_ends_the_wait_at_another_store(
        self, store: RunStore, other: RunStore, worker: str, change: Change
    ) -> None:
        assert await is_woken(other, store, worker, change, self.timeout)

    async def test_a_cancel_reaches_the_worker_at_another_store(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        await create_claimed(store, worker)
        await other.request_cancel("run-1")
        assert list((await store.pending(worker)).cancels) == ["run-1"]

    async def test_mail_reaches_the_worker_at_another_store(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        claim = await create_claimed(store, worker)
        assert list((await store.pending(worker)).mail) == []
        for name in ("first", "second"):
            await other.post("run-1", make_mail(name))
        assert list((await store.pending(worker)).mail) == ["run-1"]
        await store.append(claim, make_append(1, b"used", consumed=["first"]))
        assert await read_mail_ids(other) == ["second"]
        with pytest.raises(StoreError):
            await other.append(claim, make_append(2, b"again", consumed=["first"]))
        with pytest.raises(UnreadMail):
            await store.release(claim, Release(status=RunStatus.DONE, wake_on=["message"]))
        await other.append(claim, make_append(2, b"used", consumed=["second"]))
        await store.release(claim, Release(status=RunStatus.WAITING, wake_on=["message"]))
        await other.post("run-1", make_mail("third"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == ["run-1"]

    async def test_a_worker_keeps_its_agents_over_a_heartbeat(self, store: RunStore, other: RunStore) -> None:
        worker = replace(make_worker(), agents=("agent", "agent-2"))
        await store.register_worker(worker)
        await asyncio.sleep(1.2 * self.heartbeat_interval.total_seconds())
        [listed] = await other.list_workers()
        assert (listed.worker, listed.alive) == (worker, True)

    async def test_a_deregistered_worker_stays_dead_after_a_heartbeat(
        self, store: RunStore, other: RunStore, worker: str
    ) -> None:
        await add_worker(store)  # needs further heartbeats of the store
        await create_claimed(store, worker)
        await store.deregister_worker(worker)
        await asyncio.sleep(1.2 * self.heartbeat_interval.total_seconds())
        for each in (store, other):
            assert await list_run_ids(each, RunFilter(interrupted=True)) == ["run-1"]


@pytest.mark.asyncio
class DamageTests(DurableStoreUnderTest):
    async def test_a_damaged_run_is_reported_and_affects_no_other(
        self, store: RunStore, worker: str, location: str
    ) -> None:
        for name in ("first", "damaged", "last"):
            claim = await create_claimed(
                store, worker, make_run(name, b"begin", b"the body of %s" % name.encode(), b"end")
            )
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        await store.deregister_worker(worker)
        await store.close()
        self.damage(location, "damaged", b"the body of damaged")
        async with self.open_store(location) as store:
            for _ in range(2):
                with pytest.raises(RunDamaged) as damaged:
                    await store.load("damaged")
                assert damaged.value.run_id == "damaged"
            assert "damaged" in await list_run_ids(store)
            worker = await add_worker(store)
            for name in ("first", "last"):
                claim = await store.claim(name, worker)
                await store.append(claim, make_append(3, b"more"))
                assert len(await load_bodies(store, name)) == 4
            with pytest.raises(RunDamaged):
                await store.load("damaged")
            await store.remove("damaged")
            assert await list_run_ids(store) == ["first", "last"]
            assert (await load_record(store, "first")).owner_alive
