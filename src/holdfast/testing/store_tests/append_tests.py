"""Tests of writing and loading runs."""

import asyncio
import hashlib
from typing import Any

import pytest

from holdfast.checkpoint.errors import ClaimLost, RunExists, RunNotFound, StoreError
from holdfast.checkpoint.journal import Append, EntryKind
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.core.errors import DefinitionError
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_entries,
    make_run,
)

BODIES = {
    "nothing": b"",
    "a NUL": b"\0",
    "no JSON": b'{"broken": ',
    "line ends": b"one\ntwo\r\nthree\r\n\n",
    "invalid UTF-8": b"\xff\xfe\x80\xc3(",
    "every byte": bytes(range(256)),
    "five megabytes": bytes(range(251)) * (5_000_000 // 251),
}


def _format_digest(body: bytes) -> str:
    return f"{len(body)} bytes, {hashlib.sha256(body).hexdigest()}"


async def assert_consistent_loads(writing: RunStore, reading: RunStore, worker_id: str) -> None:
    """Load a run repeatedly while it is written and rewritten. Each load must be consistent."""
    claim = await create_claimed(writing, worker_id, make_run("run-1", b"begin", progress=b"1"))

    async def write() -> None:
        for n in range(40):
            first = 1 + 2 * n
            progress = b"%d" % (first + 2)
            await writing.append(claim, make_append(first, b"x" * n, b"y", progress=progress, rewrite=n % 4 == 3))

    writing_task = asyncio.ensure_future(write())
    while not writing_task.done():
        stored = await reading.load("run-1")
        seqs = [entry.seq for entry in stored.entries]
        assert seqs == list(range(seqs[0], stored.record.next_seq))
        assert stored.record.size == sum(len(entry.body) for entry in stored.entries)
        assert stored.record.progress == b"%d" % stored.record.next_seq
        await asyncio.sleep(0)
    await writing_task


@pytest.mark.asyncio
class CreateTests(StoreUnderTest):
    async def test_a_run_created_without_a_worker_is_queued_and_unclaimed(self, store: RunStore) -> None:
        assert await store.create(make_run()) is None
        record = await load_record(store)
        assert record.status is RunStatus.QUEUED
        assert (record.owner, record.owner_alive, record.token, record.strikes) == (None, False, 0, 0)
        assert record.is_interrupted

    async def test_a_run_created_for_a_worker_is_running_and_claimed(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        record = await load_record(store)
        assert (claim.run_id, claim.worker_id, claim.strikes) == ("run-1", worker, 1)
        assert claim.token > 0
        assert record.status is RunStatus.RUNNING
        assert (record.owner, record.owner_alive, record.token) == (worker, True, claim.token)
        assert record.strikes == claim.strikes
        assert not record.is_interrupted

    async def test_a_created_run_loads_as_it_was_written(self, store: RunStore) -> None:
        run = make_run(
            "run-1",
            b"first",
            b"second",
            agent_name="agent 'of' \"Käse\" ☂",
            caller_id="caller; -- \\ %s {0}",
            parent_run_id="run-0",
            tenant="tenant \\ ☂",
            background=True,
            info=b"\0info\xff",
            progress=b"\0progress\xff",
        )
        await store.create(run)
        record, journal = await load_contents(store)
        assert journal == list(run.entries)
        assert (record.run_id, record.agent_name, record.caller_id) == (run.run_id, run.agent_name, run.caller_id)
        assert (record.parent_run_id, record.info, record.progress) == (run.parent_run_id, run.info, run.progress)
        assert (record.tenant, record.background) == (run.tenant, True)
        assert (record.next_seq, record.size) == (2, len(b"first") + len(b"second"))
        assert (record.reason, record.cancel_requested, record.expires_at) == ("", False, None)

    async def test_times_are_aware_and_do_not_run_backwards(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        created = await load_record(store)
        await store.append(claim, make_append(1, b"more"))
        written = await load_record(store)
        for moment in (created.created_at, created.updated_at, created.not_before):
            assert moment.tzinfo is not None
            assert moment.utcoffset() is not None
        assert written.created_at == created.created_at <= created.updated_at <= written.updated_at

    @pytest.mark.parametrize(
        "status", [None, RunStatus.INTERRUPTED, RunStatus.PARKED, RunStatus.DONE, RunStatus.FAILED]
    )
    async def test_an_id_that_exists_is_refused_and_keeps_its_run(
        self, store: RunStore, worker: str, status: RunStatus | None
    ) -> None:
        claim = await create_claimed(store, worker)
        if status is not None:
            await store.release(claim, Release(status=status))
        before = await load_contents(store)
        for worker_id in (None, worker):
            with pytest.raises(RunExists) as refused:
                await store.create(make_run("run-1", b"another"), worker_id=worker_id)
            assert refused.value.run_id == "run-1"
        assert await load_contents(store) == before

    async def test_of_many_creators_of_one_id_one_wins(self, store: RunStore) -> None:
        runs = [make_run("run-1", f"creator {n}".encode()) for n in range(10)]
        results = await asyncio.gather(*(store.create(run) for run in runs), return_exceptions=True)
        winners = [run for run, result in zip(runs, results, strict=True) if result is None]
        assert len(winners) == 1
        assert [type(result) for result in results if result is not None] == [RunExists] * 9
        assert (await load_contents(store))[1] == list(winners[0].entries)


@pytest.mark.asyncio
class AppendTests(StoreUnderTest):
    async def test_appended_entries_come_back_in_order(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        expected = list(make_run().entries)
        for first, count in ((1, 1), (2, 3), (5, 2)):
            new = make_entries(first, *(f"entry {first + n}".encode() for n in range(count)), kind=EntryKind.RESULT)
            await store.append(claim, Append(entries=new, progress=b""))
            expected += new
        record, journal = await load_contents(store)
        assert journal == expected
        assert (record.next_seq, record.size) == (7, sum(len(entry.body) for entry in expected))

    async def test_every_kind_of_entry_comes_back_as_that_kind(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        new = [make_entries(seq, b"body", kind=kind)[0] for seq, kind in enumerate(EntryKind, 1)]
        await store.append(claim, Append(entries=new, progress=b""))
        assert (await load_contents(store))[1][1:] == new

    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
    async def test_bodies_are_opaque_bytes(self, store: RunStore, worker: str, body: bytes) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", body))
        await store.append(claim, make_append(1, body, body, progress=body[:1000]))
        stored = await store.load("run-1")
        # Compare digests: pytest takes minutes to show the difference of two bodies of five megabytes.
        assert [_format_digest(entry.body) for entry in stored.entries] == [_format_digest(body)] * 3
        assert (stored.record.progress, stored.record.size) == (body[:1000], 3 * len(body))

    async def test_progress_is_replaced_as_a_whole(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"more", progress=b"a longer progress than before"))
        assert (await load_record(store)).progress == b"a longer progress than before"
        await store.append(claim, make_append(2, b"more", progress=b""))
        assert (await load_record(store)).progress == b""

    async def test_a_write_without_entries_replaces_only_the_progress(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, progress=b"further"))
        record, journal = await load_contents(store)
        assert (record.progress, record.next_seq, len(journal)) == (b"further", 1, 1)

    async def test_an_empty_write_is_a_write(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for _ in range(2):
            await store.append(claim, make_append(1, progress=b""))
            assert [(record.progress, record.next_seq) async for record in iter_runs(store)] == [(b"", 1)]
            assert (await load_contents(store))[0].progress == b""
        claim = await store.claim("run-1", worker, steal=True)
        await store.append(claim, make_append(1, progress=b""))
        await store.append(claim, make_append(1, b"more"))
        assert await load_bodies(store) == [b"begin", b"more"]

    async def test_a_finished_step_clears_the_strikes_and_nothing_else_does(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"half a step"))
        assert (await load_record(store)).strikes == 1
        await store.append(claim, make_append(2, b"the other half", step_finished=True))
        assert (await load_record(store)).strikes == 0
        await store.append(claim, make_append(3, b"half a step"))
        assert (await load_record(store)).strikes == 0

    @pytest.mark.parametrize(
        "write",
        [
            pytest.param(make_append(3, b"x"), id="after a gap"),
            pytest.param(make_append(1, b"x"), id="a second time"),
            pytest.param(
                Append(entries=[*make_entries(2, b"x"), *make_entries(4, b"y")], progress=b"new"),
                id="with a gap inside",
            ),
            pytest.param(make_append(0, b"x", rewrite=True), id="as a rewrite that counts anew"),
        ],
    )
    async def test_entries_out_of_order_are_refused_and_change_nothing(
        self, store: RunStore, worker: str, write: Append
    ) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", b"zero", b"one"))
        before = await load_contents(store)
        with pytest.raises(StoreError):
            await store.append(claim, write)
        assert await load_contents(store) == before
        await store.append(claim, make_append(2, b"in order"))
        assert await load_bodies(store) == [b"zero", b"one", b"in order"]

    async def test_writes_to_many_runs_at_once_stay_apart(self, store: RunStore, worker: str) -> None:
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(20)]

        async def write(claim: Claim) -> None:
            for seq in range(1, 6):
                await store.append(claim, make_append(seq, f"{claim.run_id} {seq}".encode(), progress=b"%d" % seq))

        await asyncio.gather(*(write(claim) for claim in claims))
        for claim in claims:
            expected = [b"begin", *(f"{claim.run_id} {seq}".encode() for seq in range(1, 6))]
            assert await load_bodies(store, claim.run_id) == expected

    async def test_one_bad_write_among_many_fails_alone(self, store: RunStore, worker: str) -> None:
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(9)]
        await store.claim("run-4", worker, steal=True)
        results = await asyncio.gather(
            *(store.append(claim, make_append(1, b"more")) for claim in claims), return_exceptions=True
        )
        assert [n for n, result in enumerate(results) if result is not None] == [4]
        assert isinstance(results[4], StoreError)
        for n in range(9):
            assert await load_bodies(store, f"run-{n}") == ([b"begin"] if n == 4 else [b"begin", b"more"])


@pytest.mark.asyncio
class RewriteTests(StoreUnderTest):
    async def test_a_rewrite_leaves_exactly_its_entries(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", b"zero", b"one", b"two"))
        await store.append(claim, make_append(3, b"three"))
        await store.append(claim, make_append(4, b"zero to three", b"four", progress=b"compacted", rewrite=True))
        record, journal = await load_contents(store)
        assert journal == make_entries(4, b"zero to three", b"four")
        assert (record.next_seq, record.size, record.progress) == (6, len(b"zero to threefour"), b"compacted")

    async def test_a_rewritten_run_is_appended_to(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", b"zero", b"one"))
        for first in (2, 4, 6):
            await store.append(claim, make_append(first, b"compacted", rewrite=True))
            await store.append(claim, make_append(first + 1, b"new"))
            assert (await load_contents(store))[1] == make_entries(first, b"compacted", b"new")

    async def test_a_rewrite_may_leave_nothing(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", b"zero", b"one"))
        await store.append(claim, make_append(2, rewrite=True))
        record, journal = await load_contents(store)
        assert (journal, record.next_seq, record.size) == ([], 2, 0)
        await store.append(claim, make_append(2, b"two"))
        assert (await load_contents(store))[1] == make_entries(2, b"two")


@pytest.mark.asyncio
class LoadTests(StoreUnderTest):
    @pytest.mark.parametrize("after", [-1, 0, 2, 3, 9])
    async def test_load_returns_the_entries_after_the_given_one(self, store: RunStore, worker: str, after: int) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"one", b"two", b"three"))
        stored = await store.load("run-1", after=after)
        assert [entry.seq for entry in stored.entries] == [seq for seq in range(4) if seq > after]
        assert stored.record == await load_record(store)

    @pytest.mark.parametrize("after", [-1, 1, 2, 3])
    async def test_load_after_an_entry_works_over_a_rewrite(self, store: RunStore, worker: str, after: int) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", b"zero", b"one"))
        await store.append(claim, make_append(2, b"compacted", b"new", rewrite=True))
        stored = await store.load("run-1", after=after)
        assert [entry.seq for entry in stored.entries] == [seq for seq in (2, 3) if seq > after]

    async def test_loading_changes_nothing(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        before = await load_contents(store)
        for _ in range(3):
            await store.load("run-1", after=0)
        assert await load_contents(store) == before

    async def test_a_load_during_writes_is_consistent(self, store: RunStore, worker: str) -> None:
        await assert_consistent_loads(store, store, worker)

    async def test_an_unknown_run_is_not_found(self, store: RunStore) -> None:
        await store.create(make_run("run-1"))
        with pytest.raises(RunNotFound) as missing:
            await store.load("run-2")
        assert missing.value.run_id == "run-2"

    async def test_get_record_returns_the_loaded_record(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        for number in range(1, 4):
            await store.append(claim, make_append(number, b"more", progress=b"step %d" % number))
            record = await get_record(store, "run-1")
            assert record == (await store.load("run-1")).record
            assert (record.next_seq, record.progress) == (number + 1, b"step %d" % number)

    async def test_the_record_of_an_unknown_run_is_not_found(self, store: RunStore) -> None:
        await store.create(make_run("run-1"))
        with pytest.raises(RunNotFound) as missing:
            await get_record(store, "run-2")
        assert missing.value.run_id == "run-2"


def _insert(connection: Any) -> int:
    connection.execute("create table if not exists noted (name text)")
    connection.execute("insert into noted values ('one')")
    return _count(connection)


def _count(connection: Any) -> int:
    found: int = connection.execute("select count(*) from noted").fetchone()[0]
    return found


async def _transact(store: RunStore, claim: Claim, function: Any, first: int) -> Any:
    """Call the function, and append one entry with what it returned."""

    def make_write(value: Any) -> Append:
        return make_append(first, b"%d" % value)

    return await store.transact(claim, function, make_write)


@pytest.mark.asyncio
class TransactTests(StoreUnderTest):
    async def test_a_function_that_the_store_cannot_call_is_refused(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker, make_run("run-1", b"begin"))
        called: list[Any] = []

        async def note(connection: Any) -> int:
            called.append(connection)
            return 1

        for function, possible in ((called.append, {"sync", "any"}), (note, {"any"})):
            if store.transactions not in possible:
                with pytest.raises(DefinitionError):
                    await _transact(store, claim, function, 1)
        assert called == []
        assert await load_bodies(store) == [b"begin"]

    async def test_the_writes_of_a_function_commit_with_its_entry(self, store: RunStore, worker: str) -> None:
        if store.transactions == "none":
            return
        claim = await create_claimed(store, worker, make_run("run-1", b"begin"))
        assert await _transact(store, claim, _insert, 1) == 1
        assert await _transact(store, claim, _insert, 2) == 2
        await store.append(claim, make_append(3, b"more"))
        assert await load_bodies(store) == [b"begin", b"1", b"2", b"more"]

    @pytest.mark.parametrize("fails", ["function", "write", "claim"])
    async def test_a_transaction_that_fails_leaves_nothing(self, store: RunStore, worker: str, fails: str) -> None:
        if store.transactions == "none":
            return
        claim = await create_claimed(store, worker, make_run("run-1", b"begin"))
        await _transact(store, claim, _insert, 1)

        def insert_and_fail(connection: Any) -> int:
            _insert(connection)
            raise LookupError("no")

        def fail_to_write(value: Any) -> Append:
            raise LookupError("no")

        if fails == "function":
            with pytest.raises(LookupError):
                await _transact(store, claim, insert_and_fail, 2)
        elif fails == "write":
            with pytest.raises(LookupError):
                await store.transact(claim, _insert, fail_to_write)
        else:
            new = await store.claim("run-1", await add_worker(store), steal=True)
            with pytest.raises(ClaimLost):
                await _transact(store, claim, _insert, 2)
            claim = new
        assert await _transact(store, claim, _count, 2) == 1
        assert await load_bodies(store) == [b"begin", b"1", b"1"]
