"""Tests of mail: posting, reading and consuming it."""

import asyncio
from datetime import timedelta
from types import NoneType

import msgspec
import pytest

from holdfast.checkpoint.errors import ClaimLost, RunEnded, RunNotFound, StoreError, UnreadMail
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import (
    RELEASE_STATUSES,
    TERMINAL_STATUSES,
    Mail,
    Release,
    RunRecord,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import END, RECORD_ONLY, RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_entries,
    make_mail,
    make_run,
    read_mail_ids,
)

#: Legal ids and topics that a database may confuse or change.
ODD_NAMES = ["a", "A", "a ", "é", "e\u0301", "☂ 'quoted' \"%_\\", "answer:call-1", "answer:call-1:x", "x" * 500]


@pytest.mark.asyncio
class PostTests(StoreUnderTest):
    async def test_posted_mail_is_unread_in_the_order_of_posting(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        assert list((await store.load("run-1", after=END)).mail) == []
        for number in (3, 1, 2):
            receipt = await store.post("run-1", make_mail(f"mail-{number}", topic=f"topic {number}", body=b"\0\xff"))
            assert (receipt.is_new, receipt.consumed) == (True, False)
            assert receipt.mail == ((await store.load("run-1", after=END)).mail)[-1]
        mail = list((await store.load("run-1", after=END)).mail)
        assert [each.mail_id for each in mail] == ["mail-3", "mail-1", "mail-2"]
        assert [(each.topic, each.body) for each in mail] == [(f"topic {n}", b"\0\xff") for n in (3, 1, 2)]
        assert list((await store.load("run-1")).mail) == mail
        assert list((await store.load("run-1", after=7)).mail) == mail

    async def test_a_record_is_loaded_without_the_mail(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        await store.post("run-1", make_mail())
        whole, alone = await store.load("run-1"), await store.load("run-1", after=RECORD_ONLY)
        assert (len(whole.entries), len(whole.mail)) == (1, 1)
        assert (alone.record, list(alone.entries), list(alone.mail)) == (whole.record, [], [])

    async def test_the_store_sets_the_time_of_posting(self, store: RunStore) -> None:
        await store.create(make_run())
        record = await load_record(store)
        wrong = msgspec.structs.replace(make_mail(), posted_at=record.created_at.replace(year=2000))
        posted_at = (await store.post("run-1", wrong)).mail.posted_at
        assert posted_at is not None
        assert posted_at.tzinfo is not None
        assert posted_at >= record.created_at
        [mail] = (await store.load("run-1", after=END)).mail
        assert mail.posted_at == posted_at

    async def test_a_run_in_any_status_but_a_terminal_one_takes_mail(self, store: RunStore, worker: str) -> None:
        await store.create(make_run("queued"))
        await create_claimed(store, worker, make_run("running"))
        for status in sorted(RELEASE_STATUSES - TERMINAL_STATUSES):
            await store.release(await create_claimed(store, worker, make_run(status)), Release(status=status))
        for run_id in ("queued", "running", *sorted(RELEASE_STATUSES - TERMINAL_STATUSES)):
            before, journal = await load_contents(store, run_id)
            await store.post(run_id, make_mail())
            after, unchanged = await load_contents(store, run_id)
            assert await read_mail_ids(store, run_id) == ["mail-1"]
            assert unchanged == journal
            assert _without_update(after) == _without_update(before), "mail without a waiter changes nothing else"

    @pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
    async def test_a_terminal_run_refuses_mail(self, store: RunStore, worker: str, status: RunStatus) -> None:
        claim = await create_claimed(store, worker)
        await store.post("run-1", make_mail("before"))
        await store.release(claim, Release(status=status))
        before = await load_contents(store)
        with pytest.raises(RunEnded) as ended:
            await store.post("run-1", make_mail("late"))
        assert (ended.value.run_id, ended.value.status) == ("run-1", status)
        assert await load_contents(store) == before
        assert await read_mail_ids(store) == ["before"]

    async def test_an_unknown_run_has_no_mail(self, store: RunStore) -> None:
        with pytest.raises(RunNotFound):
            await store.post("run-1", make_mail())
        with pytest.raises(RunNotFound):
            await store.load("run-1", after=END)
        await store.create(make_run())
        assert await read_mail_ids(store) == []

    async def test_mail_of_a_known_id_changes_nothing(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        first = (await store.post("run-1", make_mail())).mail
        again = await store.post("run-1", make_mail(topic="other", body=b"other"))
        assert (again.is_new, again.consumed, again.mail) == (False, False, first)
        assert list((await store.load("run-1", after=END)).mail) == [first]
        await store.append(claim, make_append(1, b"used", consumed=["mail-1"]))
        again = await store.post("run-1", make_mail(body=b"other"))
        assert (again.is_new, again.consumed) == (False, True)
        assert again.mail == msgspec.structs.replace(first, body=b""), "the entry that used it has the content"
        assert await read_mail_ids(store) == []

    @pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
    async def test_mail_of_a_known_id_is_accepted_after_the_end(
        self, store: RunStore, worker: str, status: RunStatus
    ) -> None:
        claim = await create_claimed(store, worker)
        await store.post("run-1", make_mail("used"))
        unread = (await store.post("run-1", make_mail("unread"))).mail
        await store.release(claim, Release(status=status, consumed=["used"]))
        again = await store.post("run-1", make_mail("used"))
        assert (again.is_new, again.consumed) == (False, True)
        again = await store.post("run-1", make_mail("unread", body=b"other"))
        assert (again.is_new, again.consumed, again.mail) == (False, False, unread)

    async def test_the_mail_of_two_runs_is_separate(self, store: RunStore, worker: str) -> None:
        claims = [await create_claimed(store, worker, make_run(name)) for name in ("run-1", "run-2", "RUN-1")]
        for claim in claims:
            assert (await store.post(claim.run_id, make_mail(body=claim.run_id.encode()))).is_new
        await store.append(claims[0], make_append(1, b"used", consumed=["mail-1"]))
        assert await read_mail_ids(store) == []
        for claim in claims[1:]:
            [mail] = (await store.load(claim.run_id, after=END)).mail
            assert mail.body == claim.run_id.encode()

    async def test_every_mail_id_and_topic_is_kept_as_it_is(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for name in ODD_NAMES:
            assert (await store.post("run-1", make_mail(name, topic=name, body=name.encode()))).is_new
        mail = (await store.load("run-1", after=END)).mail
        assert [(each.mail_id, each.topic, each.body.decode()) for each in mail] == [(name,) * 3 for name in ODD_NAMES]
        await store.append(claim, make_append(1, b"used", consumed=ODD_NAMES[::2]))
        assert await read_mail_ids(store) == ODD_NAMES[1::2]

    async def test_concurrent_posts_are_all_kept_once(self, store: RunStore) -> None:
        await store.create(make_run())
        posts = [store.post("run-1", make_mail(f"mail-{n % 20}", body=b"%d" % n)) for n in range(60)]
        receipts = await asyncio.gather(*posts)
        unread = {mail.mail_id: mail for mail in (await store.load("run-1", after=END)).mail}
        assert sorted(unread) == sorted(f"mail-{n}" for n in range(20))
        assert sum(receipt.is_new for receipt in receipts) == 20
        assert all(receipt.mail == unread[receipt.mail.mail_id] for receipt in receipts)

    async def test_mail_is_removed_with_its_run(self, store: RunStore, worker: str) -> None:
        for purged in (False, True):
            claim = await create_claimed(store, worker)
            for name in ("used", "unread"):
                assert (await store.post("run-1", make_mail(name))).is_new
            await store.append(claim, make_append(1, b"used", consumed=["used"]))
            if purged:
                await store.release(claim, Release(status=RunStatus.DONE, retention=timedelta(0)))
                assert await store.purge() == 1
            else:
                await store.remove("run-1", claim=claim)
            with pytest.raises(RunNotFound):
                await store.load("run-1", after=END)
            assert list((await store.pending(worker)).mail) == []


@pytest.mark.asyncio
class ConsumeMailTests(StoreUnderTest):
    async def test_an_append_consumes_the_mail_it_names(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for n in range(4):
            await store.post("run-1", make_mail(f"mail-{n}"))
        await store.append(claim, make_append(1, b"used two", consumed=["mail-2", "mail-0"]))
        assert await read_mail_ids(store) == ["mail-1", "mail-3"]
        assert [mail.mail_id for mail in (await store.load("run-1")).mail] == ["mail-1", "mail-3"]
        await store.append(claim, make_append(2, b"all", rewrite=True, consumed=["mail-3"]))
        await store.append(claim, make_append(3, consumed=["mail-1"]))
        assert await read_mail_ids(store) == []
        assert await load_bodies(store) == [b"all"]

    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_release_consumes_the_mail_it_names(self, store: RunStore, worker: str, status: RunStatus) -> None:
        claim = await create_claimed(store, worker)
        for n in range(3):
            await store.post("run-1", make_mail(f"mail-{n}"))
        last = make_entries(1, b"used")
        await store.release(claim, Release(status=status, entries=last, consumed=["mail-2", "mail-0"]))
        assert await read_mail_ids(store) == ["mail-1"]
        assert await load_bodies(store) == [b"begin", b"used"]

    @pytest.mark.parametrize("wrong", ["unknown", "used", "of another run", "MAIL"])
    async def test_mail_that_is_not_unread_is_not_consumed(self, store: RunStore, worker: str, wrong: str) -> None:
        claim = await create_claimed(store, worker)
        await create_claimed(store, worker, make_run("run-2"))
        for name in ("mail", "used"):
            await store.post("run-1", make_mail(name))
        await store.post("run-2", make_mail("of another run"))
        await store.append(claim, make_append(1, b"used", consumed=["used"]))
        before = await store.load("run-1")
        consumed = ["mail", wrong]
        for refused in (
            make_append(2, b"more", progress=b"further", step_finished=True, consumed=consumed),
            make_append(2, b"all", rewrite=True, consumed=consumed),
            Release(status=RunStatus.DONE, entries=make_entries(2, b"end"), consumed=consumed),
            Release(status=RunStatus.WAITING, consumed=consumed, wake_on=["message"]),
        ):
            with pytest.raises(StoreError) as error:
                await _write(store, claim, refused)
            assert not isinstance(error.value, ClaimLost)
            assert _as_comparable(await store.load("run-1")) == _as_comparable(before)
        assert await read_mail_ids(store, "run-2") == ["of another run"]
        await store.append(claim, make_append(2, b"more", consumed=["mail"]))

    async def test_a_refused_write_consumes_nothing(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.post("run-1", make_mail())
        for refused in (
            make_append(7, b"out of order", consumed=["mail-1"]),
            Release(status=RunStatus.DONE, entries=make_entries(7, b"out of order"), consumed=["mail-1"]),
        ):
            with pytest.raises(StoreError):
                await _write(store, claim, refused)
            [mail] = (await store.load("run-1", after=END)).mail
            assert mail.body == b"hello"

    async def test_a_stale_claim_consumes_nothing(self, store: RunStore, worker: str) -> None:
        stale = await create_claimed(store, worker)
        await store.post("run-1", make_mail())
        claim = await store.claim("run-1", await add_worker(store), steal=True)
        before = await store.load("run-1")
        for late in (
            make_append(1, b"late", consumed=["mail-1"]),
            Release(status=RunStatus.DONE, consumed=["mail-1"]),
            Release(status=RunStatus.WAITING, wake_on=["message"]),
        ):
            with pytest.raises(ClaimLost):
                await _write(store, stale, late)
        assert _as_comparable(await store.load("run-1")) == _as_comparable(before)
        await store.append(claim, make_append(1, b"used", consumed=["mail-1"]))
        assert await read_mail_ids(store) == []

    async def test_mail_outlasts_interruption_and_takeover(self, store: RunStore, worker: str) -> None:
        await store.create(make_run())
        first = (await store.post("run-1", make_mail("early"))).mail
        claim = await store.claim("run-1", worker)
        second = (await store.post("run-1", make_mail("second"))).mail
        await store.append(claim, make_append(1, b"all", rewrite=True))
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        abandoned = await add_worker(store)
        await store.claim("run-1", abandoned)
        await store.deregister_worker(abandoned)
        claim = await store.claim("run-1", worker)
        await store.release(claim, Release(status=RunStatus.FAILED))
        claim = await store.claim("run-1", worker, statuses={RunStatus.FAILED})
        assert list((await store.load("run-1", after=END)).mail) == [first, second]
        assert (await store.post("run-1", make_mail("third"))).is_new

    @pytest.mark.parametrize("status", sorted(RELEASE_STATUSES))
    async def test_a_release_is_refused_while_its_topics_are_unread(
        self, store: RunStore, worker: str, status: RunStatus
    ) -> None:
        claim = await create_claimed(store, worker)
        for n, topic in enumerate(["message", "other", "message"]):
            await store.post("run-1", make_mail(f"mail-{n}", topic=topic))
        before = await store.load("run-1")
        release = Release(
            status=status, entries=make_entries(1, b"end"), consumed=["mail-0"], wake_on=["answer", "message"]
        )
        with pytest.raises(UnreadMail) as unread:
            await store.release(claim, release)
        assert unread.value.run_id == "run-1"
        assert _as_comparable(await store.load("run-1")) == _as_comparable(before)
        await store.release(claim, msgspec.structs.replace(release, consumed=["mail-2", "mail-0"]))
        assert (await load_record(store)).status is status
        assert await read_mail_ids(store) == ["mail-1"]

    @pytest.mark.parametrize("rewrite", [False, True])
    async def test_an_append_is_refused_while_its_topics_are_unread(
        self, store: RunStore, worker: str, rewrite: bool
    ) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"no mail", unless_mail=["answer:1"]))
        for n, topic in enumerate(["answer:1", "other", "answer:1"]):
            await store.post("run-1", make_mail(f"mail-{n}", topic=topic))
        before = await store.load("run-1")
        bodies = [b"expired"] if rewrite else [b"expired", b"more"]
        expiry = make_append(
            2, *bodies, rewrite=rewrite, progress=b"new", consumed=["mail-0"], unless_mail=["answer:1", "unknown"]
        )
        other = await create_claimed(store, worker, make_run("run-2"))
        results = await asyncio.gather(
            store.append(claim, expiry),
            store.append(other, make_append(1, b"of another run", unless_mail=["answer:1"])),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [UnreadMail, NoneType]
        assert _as_comparable(await store.load("run-1")) == _as_comparable(before)
        # The claim is still held, and mail of other topics refuses nothing.
        await store.append(claim, msgspec.structs.replace(expiry, consumed=["mail-2", "mail-0"]))
        assert (await load_record(store)).next_seq == 2 + len(bodies)
        assert await read_mail_ids(store) == ["mail-1"]


@pytest.mark.asyncio
class PendingMailTests(StoreUnderTest):
    async def test_a_worker_finds_the_runs_it_holds_that_have_unread_mail(self, store: RunStore, worker: str) -> None:
        other = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(4)]
        await create_claimed(store, other, make_run("others"))
        await store.create(make_run("queued"))
        assert list((await store.pending(worker)).mail) == []
        for run_id in ("run-0", "run-2", "run-2", "run-3", "others", "queued"):
            await store.post(run_id, make_mail())
        assert sorted((await store.pending(worker)).mail) == ["run-0", "run-2", "run-3"]
        assert list((await store.pending(other)).mail) == ["others"]
        assert list((await store.pending("unknown")).mail) == []
        await store.append(claims[0], make_append(1, b"used", consumed=["mail-1"]))
        await store.release(claims[2], Release(status=RunStatus.INTERRUPTED))
        assert list((await store.pending(worker)).mail) == ["run-3"]

    async def test_pending_mail_goes_with_the_claim(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for n in range(2):
            await store.post("run-1", make_mail(f"mail-{n}"))
        await store.append(claim, make_append(1, b"used", consumed=["mail-0"]))
        assert list((await store.pending(worker)).mail) == ["run-1"], "one is still unread"
        thief = await add_worker(store)
        claim = await store.claim("run-1", thief, steal=True)
        assert list((await store.pending(worker)).mail) == []
        assert list((await store.pending(thief)).mail) == ["run-1"]
        await store.append(claim, make_append(2, b"used", consumed=["mail-1"]))
        assert list((await store.pending(thief)).mail) == []


async def _write(store: RunStore, claim: Claim, write: Append | Release) -> None:
    await (store.append(claim, write) if isinstance(write, Append) else store.release(claim, write))


def _without_update(record: RunRecord) -> RunRecord:
    return msgspec.structs.replace(record, updated_at=record.created_at)


def _as_comparable(stored: StoredRun) -> tuple[RunRecord, list[Entry], list[Mail]]:
    """Return the contents with lists, because stores return different sequences."""
    return stored.record, list(stored.entries), list(stored.mail)
