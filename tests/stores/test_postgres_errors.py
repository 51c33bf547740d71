"""What a server refuses: an error of our own, nothing written, and the next call succeeds once the cause is gone."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest
from tests.postgres_pool import open_new_postgres
from tests.stores.postgres_support import fail_after_timeout, open_store, wait_until

from holdfast.checkpoint.errors import RunDamaged, StoreError, StoreFull, StorePermissionError, StoreUnavailable
from holdfast.checkpoint.journal import pack_segment
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.stores.postgres import PostgresStore
from holdfast.stores.postgres.gc import SLICE_ROWS
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

#: The checksum that a fourth entry would have.
SURPLUS = pack_segment(make_entries(3, b"two")).checksum


@pytest.fixture
def url() -> Iterator[str]:
    with open_new_postgres() as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(url) as store:
        yield store


def done(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def refuse_entries(url: str, sqlstate: str, when: str = "true") -> None:
    """From now on the server itself raises that error for every entry for which the condition holds."""
    done(
        url,
        f"""
        create function refuse() returns trigger language plpgsql as $$
        begin
            if {when} then raise 'refused' using errcode = '{sqlstate}'; end if;
            return new;
        end $$;
        create trigger refuse before insert on holdfast.segment for each row execute function refuse()
        """,
    )


def allow_entries(url: str) -> None:
    done(url, "drop trigger refuse on holdfast.segment; drop function refuse")


@pytest.mark.parametrize(
    ("sqlstate", "error"),
    [
        ("53100", StoreFull),
        ("42501", StorePermissionError),
        ("57014", StoreUnavailable),
        ("XX000", StoreError),
        ("22003", StoreError),
    ],
)
async def test_a_refusal_is_one_of_our_errors_and_passes(
    url: str, store: PostgresStore, sqlstate: str, error: type[StoreError]
) -> None:
    claim = await create_claimed(store, await add_worker(store))
    before = await load_contents(store)
    refuse_entries(url, sqlstate)
    with pytest.raises(StoreError) as raised:
        await store.append(claim, make_append(1, b"more"))
    assert type(raised.value) is error
    assert await load_contents(store) == before
    allow_entries(url)
    await store.append(claim, make_append(1, b"more"))
    assert await load_bodies(store) == [b"begin", b"more"]


async def test_an_error_in_one_write_fails_that_one_alone(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(8)]
    refuse_entries(url, "22000", "new.body = 'poison'")
    results = await asyncio.gather(
        *(store.append(claim, make_append(1, b"poison" if n == 3 else b"fine")) for n, claim in enumerate(claims)),
        return_exceptions=True,
    )
    assert [n for n, result in enumerate(results) if result is not None] == [3]
    assert isinstance(results[3], StoreError)
    for n in range(8):
        assert await load_bodies(store, f"run-{n}") == ([b"begin"] if n == 3 else [b"begin", b"fine"])


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
async def test_a_transaction_that_gave_way_to_others_is_repeated(url: str, store: PostgresStore, sqlstate: str) -> None:
    claim = await create_claimed(store, await add_worker(store))
    done(url, "create sequence tries")
    refuse_entries(url, sqlstate, "nextval('tries') <= 3")  # a sequence counts what was rolled back too
    await store.append(claim, make_append(1, b"more"))
    assert await load_bodies(store) == [b"begin", b"more"]
    assert done(url, "select last_value from tries") == [(4,)]


async def test_a_schema_that_was_dropped_is_an_error_that_says_so(url: str, store: PostgresStore) -> None:
    claim = await create_claimed(store, await add_worker(store))
    done(url, "drop schema holdfast cascade")
    for call in (store.append(claim, make_append(1, b"more")), store.load("run-1"), list_run_ids(store)):
        with pytest.raises(StoreError, match="dropped"):
            await call


async def test_a_session_that_is_ended_from_outside_is_replaced(url: str, store: PostgresStore) -> None:
    claim = await create_claimed(store, await add_worker(store))
    for seq in range(1, 6):
        done(url, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast'")
        await store.append(claim, make_append(seq, b"%d" % seq))
        assert (await load_record(store)).next_seq == seq + 1
    assert await load_bodies(store) == [b"begin", *(b"%d" % seq for seq in range(1, 6))]


@pytest.mark.parametrize(
    "spoil",
    [
        "update holdfast.segment set body = set_byte(body, 0, get_byte(body, 0) # 1) where seq = 1",
        "update holdfast.segment set layout = 'r' || substr(layout, 2) where seq = 1",
        "update holdfast.segment set layout = 'z' || substr(layout, 2) where seq = 1",
        "update holdfast.segment set layout = '' where seq = 1",
        "delete from holdfast.segment where seq = 0",
        "delete from holdfast.segment where seq = 1",
        "delete from holdfast.segment where seq = 2",
        "delete from holdfast.segment",
        f"insert into holdfast.segment select run, 3, layout, {SURPLUS}, body from holdfast.segment where seq = 2",
    ],
)
async def test_damage_of_every_kind_is_found(url: str, store: PostgresStore, spoil: str) -> None:
    claim = await create_claimed(store, await add_worker(store), make_run("run-1", b"zero"))
    await store.append(claim, make_append(1, b"one"))
    await store.append(claim, make_append(2, b"two"))
    done(url, spoil)
    with pytest.raises(RunDamaged):
        await store.load("run-1")
    assert await list_run_ids(store) == ["run-1"]


class TestDurability:
    """The `synchronous_commit` setting of each write, as the server notes it when it writes an entry."""

    @pytest.mark.parametrize(("durability", "expected"), [("full", "on"), ("process", "off")])
    async def test_saves_wait_for_the_disk_unless_told_otherwise(
        self, url: str, durability: str, expected: str
    ) -> None:
        async with open_store(url, durability=durability) as store:
            _note_waits(url)
            claim = await create_claimed(store, await add_worker(store))
            await store.append(claim, make_append(1, b"more"))
            await store.append(claim, make_append(2, b"more"))
            # A token lost in a crash would be granted to another worker too: a commit that grants one always waits.
            assert done(url, "select waits from noted order by seq") == [("on",), (expected,), (expected,)]


def _note_waits(url: str) -> None:
    done(
        url,
        """
        create table noted (seq bigint, waits text);
        create function note() returns trigger language plpgsql as $$
        begin
            insert into noted values (new.seq, current_setting('synchronous_commit'));
            return new;
        end $$;
        create trigger note before insert on holdfast.segment for each row execute function note()
        """,
    )


class TestWhatIsLeftOver:
    async def test_a_removed_journal_is_deleted_slice_by_slice(self, url: str, store: PostgresStore) -> None:
        count = 3 * SLICE_ROWS + 7
        claim = await create_claimed(store, await add_worker(store), make_run("long"))
        await _lengthen(url, "long", count)
        await create_claimed(store, claim.worker_id, make_run("other", *[b"body"] * 5))
        done(url, "create table slices (deleted bigint)")
        done(
            url,
            """
            create function count_deleted() returns trigger language plpgsql as $$
            begin
                insert into slices select count(*) from gone;
                return null;
            end $$;
            create trigger count_deleted after delete on holdfast.segment
                referencing old table as gone for each statement execute function count_deleted()
            """,
        )
        await store.remove("long", claim=claim)
        await wait_until(lambda: _swept(url, left=1))
        slices = [deleted for (deleted,) in done(url, "select deleted from slices where deleted > 0")]
        assert sum(map(int, map(str, slices))) == count
        assert max(map(int, map(str, slices))) <= SLICE_ROWS
        assert len(await load_bodies(store, "other")) == 5

    async def test_what_a_rewrite_replaced_is_deleted(self, url: str, store: PostgresStore) -> None:
        claim = await create_claimed(store, await add_worker(store))
        for seq in range(1, 20):
            await store.append(claim, make_append(seq, b"body"))
        await store.append(claim, make_append(20, b"compacted", rewrite=True))
        await wait_until(lambda: _swept(url, left=1))
        assert await load_bodies(store) == [b"compacted"]

    async def test_what_a_store_left_behind_the_next_one_deletes(self, url: str) -> None:
        async with open_store(url) as store:
            claim = await create_claimed(store, await add_worker(store))
            await _lengthen(url, "run-1", 20)
            done(url, "alter function holdfast.sweep rename to hidden")
            await store.remove("run-1", claim=claim)
        assert done(url, "select count(*) from holdfast.segment") == [(20,)]
        done(url, "alter function holdfast.hidden rename to sweep")
        async with open_store(url):
            await wait_until(lambda: _swept(url, left=0))

    async def test_a_sweep_that_fails_is_a_warning(
        self, url: str, store: PostgresStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        claim = await create_claimed(store, await add_worker(store))
        done(url, "drop function holdfast.sweep")
        with caplog.at_level(logging.WARNING):
            await store.remove("run-1", claim=claim)
            await wait_until(lambda: _warned(caplog))


async def _lengthen(url: str, run_id: str, count: int) -> None:
    """Give a run that has one segment `count` segments."""
    done(
        url,
        f"""
        insert into holdfast.segment
        select id, generate_series(1, {count - 1}), 'm4', 0, 'body' from holdfast.run where run_id = '{run_id}';
        update holdfast.run set next_seq = {count} where run_id = '{run_id}'
        """,
    )


async def _swept(url: str, *, left: int) -> bool:
    garbage = done(url, "select 1 from holdfast.garbage")
    return not garbage and done(url, "select count(*) from holdfast.segment") == [(left,)]


async def _warned(caplog: pytest.LogCaptureFixture) -> bool:
    return "will retry later" in caplog.text


async def test_text_that_postgresql_refuses_is_stored_nevertheless(store: PostgresStore) -> None:
    odd = "a NUL \0, a lone surrogate \ud800\udfff, a back\\slash, \\0000, an end\\"
    worker = await add_worker(store)
    claim = await create_claimed(store, worker, make_run("run-1", agent_name=odd, caller_id=odd, parent_run_id=odd))
    await store.release(claim, Release(status=RunStatus.INTERRUPTED, reason=odd))
    record = await load_record(store)
    assert (record.agent_name, record.caller_id, record.parent_run_id, record.reason) == (odd, odd, odd, odd)
    assert [claim.run_id for claim in await store.claim_next(worker, agents=[odd], limit=1)] == ["run-1"]
    await create_claimed(store, odd, make_run(odd))
    assert (await load_record(store, odd)).owner == odd
    assert (await store.pending(odd)).cancels == ()
    await store.request_cancel(odd)
    assert (await store.pending(odd)).cancels == (odd,)


async def test_moments_far_away_are_not_too_far(store: PostgresStore) -> None:
    worker = await add_worker(store)
    claim = await create_claimed(store, worker)
    await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=timedelta.max, retention=timedelta.max))
    record = await load_record(store)
    assert record.expires_at is not None
    assert record.not_before.year > 2500 < record.expires_at.year
    claim = await store.claim("run-1", worker)
    await store.release(claim, Release(status=RunStatus.INTERRUPTED, delay=-timedelta(days=1)))
    assert len(await store.claim_next(worker, agents=["agent"], limit=1)) == 1


async def test_a_write_larger_than_a_batch_goes_through(store: PostgresStore) -> None:
    worker = await add_worker(store)
    big = [create_claimed(store, worker, make_run(f"run-{n}", bytes(3_000_000))) for n in range(8)]
    async with fail_after_timeout():
        claims = await asyncio.gather(*big)
    assert [len((await load_bodies(store, claim.run_id))[0]) for claim in claims] == [3_000_000] * 8


async def test_a_caller_that_is_cancelled_harms_no_other(store: PostgresStore) -> None:
    worker = await add_worker(store)
    claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(10)]
    writes = [asyncio.ensure_future(store.append(claim, make_append(1, b"more"))) for claim in claims]
    await asyncio.sleep(0)
    for write in writes[::2]:
        write.cancel()
    async with fail_after_timeout():
        await asyncio.gather(*writes, return_exceptions=True)
    for n in range(10):
        found = await load_bodies(store, f"run-{n}")
        assert found in ([b"begin"], [b"begin", b"more"])
        assert n % 2 == 0 or found == [b"begin", b"more"]


async def test_a_save_looks_at_its_own_run_however_many_there_are(url: str, store: PostgresStore) -> None:
    """The server plans a statement while its tables are small, and keeps the plan."""
    claim = await create_claimed(store, await add_worker(store))
    seq = 0

    async def save() -> None:
        nonlocal seq
        seq += 1
        await store.append(claim, make_append(seq, b"more"))

    def counted() -> tuple[int, int]:
        """Runs changed and looked at so far. The server counts them at most once a second."""
        question = "select n_tup_upd, idx_tup_fetch + seq_tup_read, n_tup_ins from pg_stat_user_tables"
        [(changed, seen, made)] = done(url, f"{question} where relname = 'run'")
        return (int(str(changed)), int(str(seen))) if int(str(made)) > 2000 else (0, 0)

    for _ in range(10):
        await save()
    await asyncio.gather(*(store.create(make_run(f"other-{n}")) for n in range(2000)))
    async with fail_after_timeout():
        while (before := counted()) == (0, 0):
            await save()
        while (after := counted())[0] < before[0] + 10:
            await save()
    assert (after[1] - before[1]) / (after[0] - before[0]) < 10


async def test_a_damaged_row_is_shown_in_its_page_and_affects_no_other(url: str) -> None:
    async with open_store(url) as store:
        for n in range(3):
            await store.create(make_run(f"run-{n}"))
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("update holdfast.run set not_before = 'infinity' where run_id = 'run-1'")
        records = (await store.list_page()).records
        assert [record.run_id for record in records] == ["run-2", "run-1", "run-0"]
        assert [record.status for record in records] == [RunStatus.QUEUED, RunStatus.PARKED, RunStatus.QUEUED]
        assert records[1].reason.startswith("damaged: its record is not what was written")
        with pytest.raises(RunDamaged):
            await store.load("run-1")
