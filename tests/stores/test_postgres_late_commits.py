"""The timeout ends before the answer arrives: the write was committed, and its caller does not know.

To the caller nothing has changed, and it may repeat the call.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import psycopg
import pytest
from tests.postgres_proxy import CuttingProxy, Harm
from tests.stores.postgres_support import fail_after_timeout, open_store, route_through, wait_until

from holdfast.checkpoint.errors import ClaimLost, RunExists, StoreUnavailable
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Mail, Release, RunStatus
from holdfast.checkpoint.store import END
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_entries,
    make_run,
)

#: Makes a call that is committed, but whose answer is lost.
Unanswered = Callable[[Awaitable[object]], Awaitable[None]]


@pytest.fixture
async def witness(url: str) -> AsyncIterator[PostgresStore]:
    """Another store on the same runs, straight to the server."""
    async with open_store(url) as witness:
        yield witness


@pytest.fixture
async def store(proxy: CuttingProxy, witness: PostgresStore, url: str) -> AsyncIterator[PostgresStore]:
    """Through the proxy, with a short timeout. The tables exist already: creating them takes longer."""
    async with open_store(route_through(proxy, url), timeout=timedelta(seconds=1)) as store:
        yield store


@pytest.fixture
def unanswered(proxy: CuttingProxy) -> Unanswered:
    """Make a call that is committed, and that ends in `StoreUnavailable`."""

    async def call(awaitable: Awaitable[object]) -> None:
        proxy.harm(Harm.LOSE_THE_ANSWER, b"write_batch", and_refuse=True)
        with pytest.raises(StoreUnavailable):
            async with fail_after_timeout():
                await awaitable
        assert proxy.landed.is_set()
        proxy.refusing = False

    return call


async def test_the_same_append_succeeds_and_is_there_once(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one", b"two")))
    assert await load_bodies(witness) == [b"begin", b"one", b"two"], "it was committed"
    await store.append(claim, make_append(1, b"one", b"two"))
    await store.append(claim, make_append(3, b"three"))
    record, journal = await load_contents(witness)
    assert [entry.body for entry in journal] == [b"begin", b"one", b"two", b"three"]
    assert record.size == sum(len(entry.body) for entry in journal)


async def test_the_same_append_may_have_consumed_mail(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    for mail_id in ("one", "two"):
        await store.post("run-1", Mail(mail_id=mail_id, topic="message", body=b"hello"))
    await unanswered(store.append(claim, make_append(1, b"used one", consumed=["one"])))
    assert [mail.mail_id for mail in (await store.load("run-1", after=END)).mail] == ["two"], "it was committed"
    await store.append(claim, make_append(1, b"used both", consumed=["one", "two"]))
    await unanswered(store.append(claim, make_append(2, b"more")))
    release = Release(status=RunStatus.WAITING, entries=make_entries(2, b"waits"), wake_on=["message"])
    await store.release(claim, release)
    assert await load_bodies(store) == [b"begin", b"used both", b"waits"]
    assert (await store.load("run-1", after=END)).mail == ()
    assert (await load_record(store)).size == len(b"beginused bothwaits")


async def test_a_release_may_have_mail_that_was_consumed_already(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await store.post("run-1", Mail(mail_id="one", topic="message", body=b"hello"))
    await unanswered(store.append(claim, make_append(1, b"used", consumed=["one"])))
    await store.release(claim, Release(status=RunStatus.DONE, entries=make_entries(1, b"used"), consumed=["one"]))
    assert await load_bodies(store) == [b"begin", b"used"]


async def test_a_waiting_run_that_was_claimed_waits_again_or_reads_its_mail(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    worker = await add_worker(store)
    statuses = frozenset({RunStatus.WAITING})
    for run_id in ("run-1", "run-2"):
        claim = await create_claimed(store, worker, make_run(run_id))
        await store.release(claim, Release(status=RunStatus.WAITING, reason="a person", wake_on=["message"]))
        await unanswered(store.claim(run_id, worker, statuses=statuses))
        if run_id == "run-2":
            await witness.post(run_id, Mail(mail_id="one", topic="message", body=b"hello"))

        async def is_released(run_id: str = run_id) -> bool:
            return (await load_record(witness, run_id)).status is not RunStatus.RUNNING

        await wait_until(is_released)
    first, second = await load_record(witness, "run-1"), await load_record(witness, "run-2")
    assert (first.status, first.reason, list(first.wake_on)) == (RunStatus.WAITING, "a person", ["message"])
    assert second.status is RunStatus.INTERRUPTED


async def test_the_next_append_may_carry_more(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one")))
    await store.append(claim, make_append(1, b"one", b"two", progress=b"further"))
    record, journal = await load_contents(store)
    assert [entry.body for entry in journal] == [b"begin", b"one", b"two"]
    assert (record.size, record.progress) == (len(b"beginonetwo"), b"further")


async def test_the_next_append_may_say_something_else(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one", b"two", b"three")))
    await store.append(claim, make_append(1, b"another"))
    await store.append(claim, make_append(2, b"more"))
    record, journal = await load_contents(store)
    assert [entry.body for entry in journal] == [b"begin", b"another", b"more"]
    assert record.size == len(b"beginanothermore")


async def test_what_was_cut_at_the_end_of_a_page_makes_way_too(
    url: str, store: PostgresStore, unanswered: Unanswered
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await store.append(claim, make_append(1, b"1" * 6000))
    await unanswered(store.append(claim, make_append(2, b"2" * 6000)))
    assert _rests(url) == 1, "it was cut"
    await store.append(claim, make_append(2, b"3" * 6000))
    assert _rests(url) == 1, "so was what came in its place"
    assert await load_bodies(store) == [b"begin", b"1" * 6000, b"3" * 6000]


async def test_the_next_append_may_be_a_rewrite(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one", b"two")))
    await store.append(claim, make_append(1, b"compacted", rewrite=True))
    await unanswered(store.append(claim, make_append(2, b"compacted again", rewrite=True)))
    await store.append(claim, make_append(2, b"compacted again", b"more", rewrite=True))
    record, journal = await load_contents(store)
    assert [(entry.seq, entry.body) for entry in journal] == [(2, b"compacted again"), (3, b"more")]
    assert record.size == len(b"compacted againmore")


async def test_the_end_may_carry_what_was_saved_already(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one", b"two")))
    await store.release(
        claim,
        Release(
            status=RunStatus.FAILED,
            reason="boom",
            entries=make_entries(1, b"one", b"two", b"outcome"),
            progress=b"last",
        ),
    )
    record, journal = await load_contents(witness)
    assert [entry.body for entry in journal] == [b"begin", b"one", b"two", b"outcome"]
    assert (record.status, record.reason, record.progress) == (RunStatus.FAILED, "boom", b"last")
    assert (record.next_seq, record.size) == (4, len(b"beginonetwooutcome"))


async def test_the_end_may_say_something_else(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one", b"two", progress=b"further")))
    await store.release(claim, Release(status=RunStatus.DONE, entries=make_entries(1, b"outcome")))
    record, journal = await load_contents(store)
    assert [entry.body for entry in journal] == [b"begin", b"outcome"]
    assert (record.status, record.progress, record.size) == (RunStatus.DONE, b"further", len(b"beginoutcome"))


async def test_the_end_comes_after_a_rewrite(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"compacted", b"history", rewrite=True)))
    await store.release(claim, Release(status=RunStatus.DONE, entries=make_entries(1, b"outcome")))
    record, journal = await load_contents(store)
    assert [(entry.seq, entry.body) for entry in journal] == [(1, b"compacted"), (2, b"history"), (3, b"outcome")]
    assert (record.next_seq, record.size) == (4, len(b"compactedhistoryoutcome"))


async def test_the_end_may_be_lost_as_well(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    ending = Release(status=RunStatus.DONE, entries=make_entries(1, b"one", b"outcome"))
    await unanswered(store.append(claim, make_append(1, b"one")))
    await unanswered(store.release(claim, ending))
    await store.release(claim, ending)
    assert await load_bodies(store) == [b"begin", b"one", b"outcome"]
    assert (await load_record(store)).status is RunStatus.DONE


async def test_who_lost_the_run_does_not_end_it(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.append(claim, make_append(1, b"one")))
    await witness.claim("run-1", await add_worker(witness), steal=True)
    before = await load_contents(witness)
    for _ in range(2):
        with pytest.raises(ClaimLost):
            await store.release(claim, Release(status=RunStatus.DONE, entries=make_entries(1, b"one", b"outcome")))
    assert await load_contents(witness) == before


async def test_a_write_without_entries_makes_no_store_forget(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    proof = Append(entries=(), progress=b"progress")
    await unanswered(store.append(claim, make_append(1, b"one")))
    await store.append(claim, proof)
    await unanswered(store.append(claim, proof))
    await store.append(claim, make_append(1, b"one", b"two"))
    await store.append(claim, make_append(3, b"three"))
    assert await load_bodies(store) == [b"begin", b"one", b"two", b"three"]


async def test_the_same_ending_succeeds(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.release(claim, Release(status=RunStatus.DONE)))
    await store.release(claim, Release(status=RunStatus.DONE))
    assert (await load_record(store)).status is RunStatus.DONE
    with pytest.raises(ClaimLost):
        await store.release(claim, Release(status=RunStatus.DONE))


async def test_the_same_removal_succeeds(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.remove("run-1", claim=claim))
    await store.remove("run-1", claim=claim)
    assert await list_run_ids(store) == []


async def test_the_same_creation_succeeds(store: PostgresStore, unanswered: Unanswered) -> None:
    worker = await add_worker(store)
    await unanswered(store.create(make_run(), worker_id=worker))
    await create_claimed(store, worker)
    await unanswered(store.create(make_run("queued")))
    await store.create(make_run("queued"))
    assert await list_run_ids(store) == ["run-1", "queued"]


async def test_a_submitted_run_stays_because_others_may_have_seen_it(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    await unanswered(store.create(make_run()))
    with pytest.raises(RunExists):
        await witness.create(make_run())  # a caller that gets this error takes the run for submitted
    await store.create(make_run("another"))
    assert await list_run_ids(witness) == ["run-1", "another"]


async def test_a_submitted_run_that_was_removed_meanwhile_is_submitted_again(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    await unanswered(store.create(make_run()))
    await witness.remove("run-1")
    await store.create(make_run())
    assert await load_bodies(witness) == [b"begin"]


async def test_another_run_of_that_name_is_neither_touched_nor_taken_for_it(
    store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
) -> None:
    await unanswered(store.create(make_run()))
    await witness.remove("run-1")
    await witness.create(make_run("run-1", b"of another caller"))
    await store.create(make_run("another"))
    with pytest.raises(RunExists):
        await store.create(make_run("run-1", b"a third"))
    assert await load_bodies(witness) == [b"of another caller"]


async def test_another_ending_is_refused(store: PostgresStore, unanswered: Unanswered) -> None:
    claim = await create_claimed(store, await add_worker(store))
    await unanswered(store.release(claim, Release(status=RunStatus.INTERRUPTED)))
    with pytest.raises(ClaimLost):
        await store.release(claim, Release(status=RunStatus.FAILED, reason="gave up"))
    assert (await load_record(store)).status is RunStatus.INTERRUPTED


class TestWhatNobodyKnowsToBeHisIsGivenBack:
    """As soon as the server is there, whether or not anything else is written."""

    async def test_a_run_that_was_begun_goes(
        self, store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
    ) -> None:
        await unanswered(store.create(make_run(), worker_id=await add_worker(store)))

        async def is_gone() -> bool:
            return await list_run_ids(witness) == []

        await wait_until(is_gone)

    async def test_a_parked_run_that_was_taken_is_parked(
        self, store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
    ) -> None:
        worker = await add_worker(store)
        await store.release(await create_claimed(store, worker), Release(status=RunStatus.PARKED, reason="approval"))
        await unanswered(store.claim("run-1", worker, statuses={RunStatus.PARKED}))
        await wait_until(lambda: _is(witness, RunStatus.PARKED))
        record = await load_record(witness)
        assert (record.reason, record.strikes) == ("approval", 0)

    async def test_a_queued_run_that_was_taken_is_there_for_others(
        self, store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
    ) -> None:
        worker, other = await add_worker(store), await add_worker(witness)
        await store.create(make_run())
        await unanswered(store.claim_next(worker, agents=["agent"], limit=1))
        await wait_until(lambda: _is(witness, RunStatus.INTERRUPTED))
        assert (await witness.claim("run-1", other)).strikes == 1

    async def test_a_failed_run_that_was_taken_is_not_kept_indefinitely(
        self, store: PostgresStore, witness: PostgresStore, unanswered: Unanswered
    ) -> None:
        worker = await add_worker(store)
        ending = Release(status=RunStatus.FAILED, reason="boom", retention=timedelta(hours=1))
        await store.release(await create_claimed(store, worker), ending)
        before = (await load_record(store)).expires_at
        await unanswered(store.claim("run-1", worker, statuses={RunStatus.FAILED}))
        await wait_until(lambda: _is(witness, RunStatus.FAILED))
        after = (await load_record(witness)).expires_at
        assert before is not None
        assert after is not None
        assert before <= after < before + timedelta(minutes=30)

    async def test_a_store_that_is_closed_gives_back_first(
        self, proxy: CuttingProxy, witness: PostgresStore, url: str, unanswered: Unanswered
    ) -> None:
        async with open_store(route_through(proxy, url), timeout=timedelta(seconds=1)) as store:
            worker = await add_worker(store)
            await store.create(make_run())
            await unanswered(store.claim("run-1", worker))
        record = await load_record(witness)
        assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 0)


async def _is(store: PostgresStore, status: RunStatus) -> bool:
    return (await load_record(store)).status is status


def _rests(url: str) -> int:
    with psycopg.connect(url) as connection:
        [(count,)] = connection.execute("select count(*) from holdfast.segment where run < 0").fetchall()
        assert isinstance(count, int)
        return count
