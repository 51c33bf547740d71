"""One writer for all runs: they share commits, and no run waits for the errors of another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
from tests.stores.sqlite_power_loss import recorded

from holdfast.checkpoint.errors import ClaimLost, StoreClosed, StoreError
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.stores.sqlite import SqliteStore, writer
from holdfast.stores.sqlite.database import statement
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    load_bodies,
    load_contents,
    make_append,
    make_entries,
    make_run,
)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_saves_at_once_share_a_sync(tmp_path: Path) -> None:
    with recorded() as recording:
        async with opened(tmp_path / "runs.db") as store:
            worker = await add_worker(store)
            claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(100)]
            before = len(recording.done)
            await asyncio.gather(*(store.append(claim, make_append(1, b"more")) for claim in claims))
            syncs = [what for what in recording.done[before:] if what.what == "sync" and what.name.endswith("-wal")]
            assert 1 <= len(syncs) <= 5


async def test_each_save_is_synced_before_it_returns(tmp_path: Path) -> None:
    with recorded() as recording:
        async with opened(tmp_path / "runs.db") as store:
            claim = await create_claimed(store, await add_worker(store))
            for seq in range(1, 30):
                before = len(recording.done)
                await store.append(claim, make_append(seq, b"more"))
                done = [operation.what for operation in recording.done[before:] if operation.name.endswith("-wal")]
                assert "write" in done
                assert "sync" in done[done.index("write") :]


@pytest.mark.parametrize("quick", [0.0, 60.0], ids=["by the thread", "by the event loop's thread"])
async def test_a_lone_run_in_a_hurry_is_written_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: float
) -> None:
    monkeypatch.setattr(writer, "_INLINE_MAX_COMMIT_S", quick)
    monkeypatch.setattr(writer, "_INLINE_MAX_GAP_S", quick)
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claim = await create_claimed(store, worker)
        for seq in range(1, 100):
            await store.append(claim, make_append(seq, b"%d" % seq))
        with pytest.raises(ClaimLost):
            await store.append(Claim(run_id="run-1", worker_id=worker, token=999, strikes=1), make_append(100, b"late"))
        await store.append(claim, make_append(100, b"compacted", rewrite=True))
        await store.append(claim, make_append(101, b"continues"))
        await store.release(claim, Release(status=RunStatus.PARKED, entries=make_entries(102, b"the end")))
        with pytest.raises(ClaimLost):
            await store.append(claim, make_append(103, b"late"))
        assert await load_bodies(store) == [b"compacted", b"continues", b"the end"]
        await store.remove("run-1")
    async with opened(tmp_path / "runs.db") as store:
        assert [record async for record in iter_runs(store)] == []


async def test_a_lone_run_in_a_hurry_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_INLINE_MAX_COMMIT_S", 60.0)
    monkeypatch.setattr(writer, "_INLINE_MAX_GAP_S", 60.0)
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        hasty, other = [await create_claimed(store, worker, make_run(name)) for name in ("hasty", "other")]
        over = asyncio.Event()

        async def hurry() -> int:
            seq = 1
            while not over.is_set():
                await store.append(hasty, make_append(seq, b"more"))
                seq += 1
            return seq

        hurrying = asyncio.ensure_future(hurry())
        for seq in range(1, 50):
            await store.append(other, make_append(seq, b"more"))
            assert len(await load_bodies(store, "other")) == seq + 1
        over.set()
        written = await hurrying
        assert len(await load_bodies(store, "hasty")) == written


async def test_a_caller_that_goes_away_harms_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(20)]
        saves = [asyncio.ensure_future(store.append(claim, make_append(1, b"one", b"two"))) for claim in claims]
        await asyncio.sleep(0)
        for save in saves[::2]:
            save.cancel()
        await asyncio.gather(*saves, return_exceptions=True)
        for n, claim in enumerate(claims):
            found = await load_bodies(store, claim.run_id)
            whole = [b"begin", b"one", b"two"]
            assert found == whole or (n % 2 == 0 and found == [b"begin"]), "all of it, or nothing"
            await store.append(claim, make_append(len(found), b"continues"))


async def test_a_claim_taken_by_another_process_is_noticed_by_a_writer_that_remembers(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store, opened(tmp_path / "runs.db") as other:
        claim = await create_claimed(store, await add_worker(store))
        await store.append(claim, make_append(1, b"mine"))
        stolen = await other.claim("run-1", await add_worker(other), steal=True)
        with pytest.raises(ClaimLost) as lost:
            await store.append(claim, make_append(2, b"late"))
        assert lost.value.current == stolen.token
        await other.append(stolen, make_append(2, b"theirs"))
        assert await load_bodies(store) == [b"begin", b"mine", b"theirs"]


@pytest.mark.parametrize("count", [3, 4, 7, 21, 85, 130, 530])
async def test_the_appends_of_many_runs_at_once_are_each_written(tmp_path: Path, count: int) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(count)]
        expected = [b"begin"]
        for seq in range(1, 60, 3):
            bodies = (b"%d" % seq, b"", b"%d" % (seq * seq))
            expected += bodies
            await asyncio.gather(*(store.append(claim, make_append(seq, *bodies)) for claim in claims))
        for claim in claims:
            record, journal = await load_contents(store, claim.run_id)
            assert [entry.body for entry in journal] == expected
            assert (record.next_seq, record.size) == (61, sum(map(len, expected)))


async def test_among_many_appends_at_once_each_is_refused_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(20)]
        await store.claim("run-3", worker, statuses=frozenset(RunStatus), steal=True)
        await store.remove("run-5", claim=claims[5])
        await store.release(claims[7], Release(status=RunStatus.PARKED))
        writes = [make_append(2 if n == 9 else 1, b"one") for n in range(20)]
        results = await asyncio.gather(*map(store.append, claims, writes), return_exceptions=True)
        refused = {n: type(result) for n, result in enumerate(results) if result is not None}
        assert refused == {3: ClaimLost, 5: ClaimLost, 7: ClaimLost, 9: StoreError}
        for n in set(range(20)) - {5}:
            assert await load_bodies(store, f"run-{n}") == [b"begin", *([b"one"] if n not in refused else [])]


async def test_many_appends_of_two_processes_do_not_take_each_others_places(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store, opened(path) as other:
        claims = [
            await create_claimed(at, await add_worker(at), make_run(f"run-{n}"))
            for n, at in enumerate([store, other] * 10)
        ]
        for seq in range(1, 40):
            # Each continues behind the segments that the other has just written.
            await asyncio.gather(*(store.append(claim, make_append(seq, b"%d" % seq)) for claim in claims[::2]))
            await asyncio.gather(*(other.append(claim, make_append(seq, b"%d" % seq)) for claim in claims[1::2]))
        expected = [b"begin", *(b"%d" % seq for seq in range(1, 40))]
        for claim in claims:
            assert await load_bodies(store, claim.run_id) == expected


async def test_what_comes_with_many_appends_is_done_with_them(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(40)]
        await asyncio.gather(
            *(store.append(claim, make_append(1, b"one")) for claim in claims[:20]),
            *(
                store.release(claim, Release(status=RunStatus.DONE, entries=make_entries(1, b"end")))
                for claim in claims[20:30]
            ),
            *(store.remove(claim.run_id, claim=claim) for claim in claims[30:]),
            *(store.create(make_run(f"new-{n}")) for n in range(10)),
        )
        for n in range(30):
            assert await load_bodies(store, f"run-{n}") == [b"begin", b"one" if n < 20 else b"end"]
        left = {record.run_id async for record in iter_runs(store)}
        assert left == {*(f"run-{n}" for n in range(30)), *(f"new-{n}" for n in range(10))}


async def test_among_many_removals_at_once_each_is_refused_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(20)]
        await store.create(make_run("child", parent_run_id="run-2"))
        await store.claim("run-3", worker, statuses=frozenset(RunStatus), steal=True)
        await store.remove("run-5", claim=claims[5])
        removals = [store.remove(claim.run_id, claim=claim) for claim in claims]
        results = await asyncio.gather(*removals, return_exceptions=True)
        assert {n: type(result) for n, result in enumerate(results) if result is not None} == {
            3: ClaimLost,
            5: ClaimLost,
        }
        assert {record.run_id async for record in iter_runs(store)} == {"run-3"}, "the child goes with its parent"


async def test_a_run_that_never_waits_leaves_turns_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound, value in {"_INLINE_MAX_GAP_S": 60.0, "_INLINE_MAX_COMMIT_S": 60.0, "_INLINE_BUDGET_S": 1e-9}.items():
        monkeypatch.setattr(writer, bound, value)
    written = unattended = 0

    async def attend() -> None:
        nonlocal unattended
        while True:
            before = written
            await asyncio.sleep(0)
            unattended = max(unattended, written - before)

    async with opened(tmp_path / "runs.db") as store:
        claim = await create_claimed(store, await add_worker(store))
        attending = asyncio.create_task(attend())
        for seq in range(1, 200):
            await store.append(claim, make_append(seq, b"more"))
            written = seq
        attending.cancel()
    assert unattended <= 2


async def test_appends_of_one_run_at_once_are_written_in_their_order(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        claim = await create_claimed(store, await add_worker(store))
        await asyncio.gather(*(store.append(claim, make_append(seq, b"%d" % seq)) for seq in range(1, 10)))
        assert await load_bodies(store) == [b"begin", *(b"%d" % seq for seq in range(1, 10))]


async def test_a_failed_batch_leaves_the_next_writes_right(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        worker = await add_worker(store)
        one, two = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in (1, 2)]
        other = apsw.Connection(str(path))
        other.execute(
            "CREATE TRIGGER picky BEFORE INSERT ON segments WHEN new.body = CAST('onetwo' AS BLOB)"
            " BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        await asyncio.gather(
            store.append(one, make_append(1, b"one")),
            store.append(two, make_append(1, b"one", b"two")),
            return_exceptions=True,
        )
        other.execute("DROP TRIGGER picky")
        other.close()
        await store.append(one, make_append(2, b"two"))
        await store.append(two, make_append(1, b"one again"))
        assert await load_bodies(store, "run-1") == [b"begin", b"one", b"two"]
        assert await load_bodies(store, "run-2") == [b"begin", b"one again"]


async def test_nothing_is_written_after_close(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        claim = await create_claimed(store, await add_worker(store))
    before = (tmp_path / "runs.db").read_bytes()
    with pytest.raises(StoreClosed):
        await store.append(claim, make_append(1, b"late"))
    assert (tmp_path / "runs.db").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "count", "index"),
    [
        ("run_row", 1, "run_id"),
        ("pending_cancels", 1, "runs_to_cancel"),
        ("pending_mail", 1, "runs_with_mail"),
        ("find_mail", 2, "mail_of_run"),
        ("unread_mail", 1, "mail_unread"),
        ("run_tree", 1, "runs_by_parent"),
        ("expired_runs", 2, "runs_expiring"),
        ("running_owners", 0, "runs_running"),
        ("claimable_priorities", 1, "runs_waiting"),
        ("claimable_lanes", 5, "runs_waiting"),
        ("claimable_runs", 6, "runs_waiting"),
        ("orphaned_runs", 5, "runs_running"),
        ("due_priorities", 2, "runs_due"),
        ("due_runs", 5, "runs_due"),
    ],
)
async def test_what_is_asked_often_reads_no_more_than_it_needs(
    tmp_path: Path, name: str, count: int, index: str
) -> None:
    async with opened(tmp_path / "runs.db"):
        connection = apsw.Connection(str(tmp_path / "runs.db"))
        rows = connection.execute(f"EXPLAIN QUERY PLAN {statement(name)}", (None,) * count).fetchall()
        connection.close()
    plan = [str(row[3]) for row in rows]
    assert not [step for step in plan if step.startswith("SCAN runs")], plan
    assert any(index in step for step in plan), plan
