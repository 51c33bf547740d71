"""Tests of runs that wait for mail or for a time, and of runs that start later."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from holdfast.checkpoint.errors import RunNotClaimable, UnreadMail
from holdfast.checkpoint.record import Release, RunFilter, RunStatus, restore_previous
from holdfast.checkpoint.store import RunStore
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    create_waiting,
    get_run_ids,
    list_run_ids,
    load_contents,
    load_record,
    make_append,
    make_mail,
    make_run,
    read_mail_ids,
)


async def claim_all(store: RunStore, worker_id: str) -> list[str]:
    """Claim every run that is due. Return their ids."""
    return get_run_ids(await store.claim_next(worker_id, agents=["agent"], limit=10))


async def from_now(store: RunStore, delay: timedelta) -> datetime:
    """Return a time relative to now on the clock of the store."""
    await store.create(make_run("clock", agent_name="clock"))
    now = (await load_record(store, "clock")).created_at
    await store.remove("clock")
    return now + delay


@pytest.mark.asyncio
class WaitTests(StoreUnderTest):
    async def test_a_waiting_run_is_left_alone(self, store: RunStore, worker: str) -> None:
        wake_at = await from_now(store, timedelta(hours=1))
        claim = await create_waiting(store, worker, wake_on=["message", "answer:1"], wake_at=wake_at)
        record = await load_record(store)
        assert (record.status, record.owner_alive, record.strikes) == (RunStatus.WAITING, False, 0)
        assert (list(record.wake_on), record.wake_at) == (["message", "answer:1"], wake_at)
        assert not record.is_interrupted
        assert await list_run_ids(store, RunFilter(interrupted=True)) == []
        assert await list_run_ids(store, RunFilter(statuses=frozenset({RunStatus.WAITING}))) == ["run-1"]
        assert await claim_all(store, worker) == []
        with pytest.raises(RunNotClaimable):
            await store.claim("run-1", worker)
        with pytest.raises(RunNotClaimable):
            await store.claim("run-1", worker, statuses={RunStatus.INTERRUPTED}, steal=True)
        assert await load_record(store) == record
        assert record.token == claim.token

    async def test_a_wait_without_mail_or_time_lasts(self, store: RunStore, worker: str) -> None:
        await create_waiting(store, worker)
        await store.post("run-1", make_mail())
        record = await load_record(store)
        assert (record.status, list(record.wake_on), record.wake_at) == (RunStatus.WAITING, [], None)
        assert await claim_all(store, worker) == []

    async def test_mail_of_an_awaited_topic_wakes_the_run(self, store: RunStore, worker: str) -> None:
        wake_at = await from_now(store, timedelta(hours=1))
        claim = await create_claimed(store, worker)
        await store.release(
            claim,
            Release(
                status=RunStatus.WAITING,
                reason="approval of pay",
                wake_on=["message", "answer:1"],
                wake_at=wake_at,
                delay=timedelta(hours=1),
            ),
        )
        await store.post("run-1", make_mail(topic="answer:1"))
        record = await load_record(store)
        assert (record.status, list(record.wake_on), record.wake_at) == (RunStatus.INTERRUPTED, [], None)
        assert (record.is_interrupted, record.reason) == (True, "")
        [claim] = await store.claim_next(worker, agents=["agent"], limit=10)
        assert (claim.run_id, claim.strikes) == ("run-1", 1)
        assert await read_mail_ids(store) == ["mail-1"]

    async def test_mail_of_other_topics_does_not_wake_the_run(self, store: RunStore, worker: str) -> None:
        await create_waiting(store, worker, wake_on=["answer:1", "☂"])
        for n, topic in enumerate(["answer", "answer:", "answer:12", "ANSWER:1", "", "%", "answer:1 "]):
            await store.post("run-1", make_mail(f"mail-{n}", topic=topic))
        assert (await load_record(store)).status is RunStatus.WAITING
        assert await claim_all(store, worker) == []
        await store.post("run-1", make_mail("awaited", topic="☂"))
        assert await claim_all(store, worker) == ["run-1"]

    async def test_mail_that_was_posted_before_does_not_wake_the_run(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.post("run-1", make_mail())
        wait = Release(status=RunStatus.WAITING, consumed=["mail-1"], wake_on=["message"])
        await store.release(claim, wait)
        await store.post("run-1", make_mail())
        assert (await load_record(store)).status is RunStatus.WAITING
        assert await claim_all(store, worker) == []

    async def test_only_the_run_that_was_sent_mail_is_woken(self, store: RunStore, worker: str) -> None:
        for n in range(5):
            await create_waiting(store, worker, make_run(f"run-{n}"), wake_on=["message"])
        await store.post("run-3", make_mail())
        await store.post("run-1", make_mail())
        assert sorted(await claim_all(store, worker)) == ["run-1", "run-3"]

    async def test_a_claim_ends_the_wait(self, store: RunStore, worker: str) -> None:
        for statuses, status in (
            ({RunStatus.WAITING}, RunStatus.INTERRUPTED),
            (set(RunStatus), RunStatus.PARKED),
        ):
            wake_at = await from_now(store, timedelta(hours=1))
            await create_waiting(store, worker, make_run(status), wake_on=["message"], wake_at=wake_at)
            claim = await store.claim(status, worker, statuses=statuses)
            record = await load_record(store, status)
            assert (record.status, list(record.wake_on), record.wake_at) == (RunStatus.RUNNING, [], None)
            await store.append(claim, make_append(1, b"more"))
            await store.post(status, make_mail())
            assert (await load_record(store, status)).owner_alive, "mail does not take it from its owner"
            await store.release(claim, Release(status=status))
            record = await load_record(store, status)
            assert (list(record.wake_on), record.wake_at) == ([], None)

    async def test_a_claim_without_effect_restores_the_wait(self, store: RunStore, worker: str) -> None:
        wake_at = await from_now(store, timedelta(hours=1))
        claim = await create_claimed(store, worker)
        await store.release(
            claim,
            Release(status=RunStatus.WAITING, reason="for an answer", strikes=1, wake_on=["message"], wake_at=wake_at),
        )
        before = await load_record(store)
        claim = await store.claim("run-1", worker, statuses={RunStatus.WAITING})
        assert claim.strikes == 2
        await store.release(claim, restore_previous(claim, before))
        after = await load_record(store)
        assert (after.status, after.reason, after.strikes) == (RunStatus.WAITING, "for an answer", 1)
        assert (list(after.wake_on), after.wake_at) == (["message"], wake_at)

    async def test_a_new_wait_replaces_the_old(self, store: RunStore, worker: str) -> None:
        await create_waiting(store, worker, wake_on=["old"], wake_at=await from_now(store, timedelta(0)))
        claim = await store.claim("run-1", worker, statuses={RunStatus.WAITING})
        await store.release(claim, Release(status=RunStatus.WAITING, wake_on=["new"]))
        await store.post("run-1", make_mail("first", topic="old"))
        assert await claim_all(store, worker) == []
        await store.post("run-1", make_mail("second", topic="new"))
        assert await claim_all(store, worker) == ["run-1"]

    async def test_a_run_whose_wake_at_has_passed_is_claimable(self, store: RunStore, worker: str) -> None:
        wake_at = await from_now(store, timedelta(0))
        for name in ("by id", "by id as interrupted", "next"):
            await create_waiting(store, worker, make_run(name), wake_on=["message"], wake_at=wake_at)
        before, _ = await load_contents(store, "next")
        assert (before.status, before.wake_at) == (RunStatus.WAITING, wake_at)
        assert (await store.claim("by id", worker)).strikes == 1
        assert (await store.claim("by id as interrupted", worker, statuses={RunStatus.INTERRUPTED})).strikes == 1
        assert await claim_all(store, worker) == ["next"]
        record = await load_record(store, "next")
        assert (record.status, list(record.wake_on), record.wake_at) == (RunStatus.RUNNING, [], None)
        assert await claim_all(store, await add_worker(store)) == [], "each is claimed once"

    async def test_a_run_is_claimed_when_its_wake_at_is_reached(self, store: RunStore, worker: str) -> None:
        later = await from_now(store, timedelta(milliseconds=200))
        wake_at = later.astimezone(timezone(timedelta(hours=-7)))
        await create_waiting(store, worker, wake_at=wake_at)
        assert (await load_record(store)).wake_at == wake_at
        async with asyncio.timeout(self.timeout.total_seconds()):
            while not await claim_all(store, worker):
                await store.wait_for_change(timedelta(milliseconds=20))
        assert (await load_record(store)).updated_at >= later

    async def test_a_woken_run_waits_its_turn_among_its_callers_runs(self, store: RunStore, worker: str) -> None:
        past = await from_now(store, timedelta(0))
        await create_waiting(store, worker, make_run("oldest", caller_id="x"), wake_on=["message"])
        await create_waiting(store, worker, make_run("second", caller_id="x"), wake_at=past)
        for name, caller in (("third", "x"), ("other", "y")):
            await store.create(make_run(name, caller_id=caller))
        await store.post("oldest", make_mail())
        assert sorted(get_run_ids(await store.claim_next(worker, agents=["agent"], limit=2))) == ["oldest", "other"]
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == ["second"]

    async def test_a_waiting_child_is_left_to_its_parent(self, store: RunStore, worker: str) -> None:
        past = await from_now(store, timedelta(0))
        parent = await create_claimed(store, worker, make_run("parent"))
        await create_waiting(store, worker, make_run("child", parent_run_id="parent"), wake_at=past)
        assert await claim_all(store, worker) == []
        await store.release(parent, Release(status=RunStatus.CANCELLED))
        assert await claim_all(store, worker) == ["child"]

    async def test_only_waiting_runs_of_the_given_agents_are_claimed(self, store: RunStore, worker: str) -> None:
        past = await from_now(store, timedelta(0))
        await create_waiting(store, worker, make_run("due", agent_name="other"), wake_at=past)
        await create_waiting(store, worker, make_run("sent", agent_name="other"), wake_on=["message"])
        await store.post("sent", make_mail())
        assert await claim_all(store, worker) == []
        claims = await store.claim_next(worker, agents=["other"], limit=10)
        assert sorted(get_run_ids(claims)) == ["due", "sent"]

    async def test_a_run_whose_cancel_was_requested_does_not_wait(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.request_cancel("run-1")
        hour = timedelta(hours=1)
        later = await from_now(store, hour)
        await store.release(claim, Release(status=RunStatus.WAITING, delay=hour, wake_at=later, wake_on=["message"]))
        record = await load_record(store)
        assert (record.status, record.cancel_requested) == (RunStatus.INTERRUPTED, True)
        assert (record.wake_at, list(record.wake_on)) == (None, [])
        assert await claim_all(store, worker) == ["run-1"]

    async def test_a_run_whose_cancel_was_requested_is_not_done(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.post("run-1", make_mail())
        await store.request_cancel("run-1")
        done = Release(status=RunStatus.DONE, entries=make_append(1, b"end").entries, consumed=["mail-1"])
        with pytest.raises(UnreadMail):
            await store.release(claim, done)
        record = await load_record(store)
        assert (record.status, record.next_seq, record.cancel_requested) == (RunStatus.RUNNING, 1, True)
        assert await read_mail_ids(store) == ["mail-1"]
        await store.release(claim, Release(status=RunStatus.INTERRUPTED, consumed=["mail-1"]))
        assert await claim_all(store, worker) == ["run-1"]

    async def test_a_run_whose_cancel_was_requested_is_not_parked(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.request_cancel("run-1")
        await store.release(claim, Release(status=RunStatus.PARKED, reason="why"))
        record = await load_record(store)
        assert (record.status, record.cancel_requested) == (RunStatus.INTERRUPTED, True)
        assert await claim_all(store, worker) == ["run-1"]

    async def test_a_run_whose_cancel_needs_a_person_is_parked(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.request_cancel("run-1")
        await store.release(claim, Release(status=RunStatus.PARKED, despite_cancel=True, reason="why"))
        record = await load_record(store)
        assert (record.status, record.cancel_requested, record.reason) == (RunStatus.PARKED, True, "why")
        assert await claim_all(store, worker) == []

    async def test_a_cancel_request_leaves_the_wait(self, store: RunStore, worker: str) -> None:
        await create_waiting(store, worker, wake_on=["message"])
        await store.request_cancel("run-1")
        record = await load_record(store)
        assert (record.status, record.cancel_requested, list(record.wake_on)) == (RunStatus.WAITING, True, ["message"])


@pytest.mark.asyncio
class NotBeforeTests(StoreUnderTest):
    async def test_a_run_with_a_later_start_is_left_alone_until_then(self, store: RunStore, worker: str) -> None:
        later = await from_now(store, timedelta(hours=1))
        await store.create(make_run("later", not_before=later.astimezone(timezone(timedelta(hours=3)))))
        await store.create(make_run("due", not_before=later - timedelta(hours=2)))
        await store.create(make_run("at once"))
        record = await load_record(store, "later")
        assert (record.not_before, record.status) == (later, RunStatus.QUEUED)
        assert sorted(await claim_all(store, worker)) == ["at once", "due"]
        assert (await store.claim("later", worker)).run_id == "later", "a caller may take it earlier"

    async def test_a_run_is_claimed_when_its_start_is_reached(self, store: RunStore, worker: str) -> None:
        later = await from_now(store, timedelta(milliseconds=200))
        await store.create(make_run(not_before=later))
        async with asyncio.timeout(self.timeout.total_seconds()):
            while not await claim_all(store, worker):
                await store.wait_for_change(timedelta(milliseconds=20))
        assert (await load_record(store)).updated_at >= later
