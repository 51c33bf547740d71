"""`remove(erase=True)` returns when nothing of the run is in the tables, also if the store is closed right after."""

import asyncio
from collections.abc import Sequence

import apsw
import psycopg
import pytest
from tests.postgres_pool import open_new_postgres

from holdfast.stores.from_url import store_from_url
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    make_append,
    make_mail,
    make_run,
)

TABLES = {
    "sqlite": ("runs", "segments", "garbage", "mail", "labels", "drafts"),
    "postgres": ("run", "segment", "garbage", "mail", "run_label", "draft"),
}


def count_rows(url: str) -> dict[str, int]:
    """The rows of each table that has some."""
    if url.startswith("sqlite:"):
        connection = apsw.Connection(url.removeprefix("sqlite:"))
        counts = {name: connection.execute(f"SELECT count(*) FROM {name}").get for name in TABLES["sqlite"]}
        connection.close()
    else:
        with psycopg.connect(url) as server:
            counts = {
                name: server.execute(f"select count(*) from holdfast.{name}".encode()).fetchall()[0][0]
                for name in TABLES["postgres"]
            }
    return {name: count for name, count in counts.items() if count}


async def fill_and_remove(url: str, names: Sequence[str]) -> None:
    """Make long journals, mail and drafts, remove all but the first without erasing them, erase that, close."""
    store = store_from_url(url)
    await store.open()
    worker = await add_worker(store)
    for name in names:
        claim = await create_claimed(store, worker, make_run(name, labels={"team": "red"}))
        await store.create(make_run(f"child-of-{name}", parent_run_id=name))
        await store.post(name, make_mail(body=b"secret"))
        await store.put_draft(claim, b"secret")
        for seq in range(1, 700):
            await store.append(claim, make_append(seq, b"secret" * 100))
        await store.append(claim, make_append(700, b"rewritten", rewrite=True))
        for seq in range(701, 1100):
            await store.append(claim, make_append(seq, b"secret" * 100))
    await store.deregister_worker(worker)
    for name in reversed(names):
        await store.remove(name, erase=name == names[0])
    await store.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_nothing_is_left_in_the_tables(durable_store_url: str, count: int) -> None:
    await fill_and_remove(durable_store_url, [f"run-{number}" for number in range(count)])
    assert count_rows(durable_store_url) == {}


async def test_it_waits_for_another_store_that_deletes_the_same_journal() -> None:
    """Another session holds the garbage locked, as a store does that has begun to delete it."""
    with open_new_postgres() as url:
        store = store_from_url(url)
        await store.open()
        with psycopg.connect(url) as other:
            while not other.execute("select from holdfast.garbage for update").fetchall():
                # At first, or if the sweep of the store that was just opened had it.
                other.execute("insert into holdfast.garbage (run, below) values (1, 1)")
                other.commit()
            erasing = asyncio.ensure_future(store.remove("run-1", erase=True))
            await store.create(make_run("run-2"))
            await store.load("run-2")
            assert not erasing.done()
        await erasing
        await store.remove("run-2", erase=True)
        await store.close()
        assert count_rows(url) == {}
