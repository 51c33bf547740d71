"""Segments that are split where a page of the server ends: pages are full, and readers see no difference."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from tests.postgres_pool import open_new_postgres
from tests.stores.postgres_support import open_store, wait_until

from holdfast.checkpoint.errors import RunDamaged
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    make_append,
    make_run,
)


@pytest.fixture
def url() -> Iterator[str]:
    with open_new_postgres() as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(url) as store:
        yield store


def asked(url: str, question: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(question.encode())
        return cursor.fetchall() if cursor.description else []


def count(url: str, which: str) -> int:
    [(found,)] = asked(url, f"select count(*) from holdfast.segment where {which}")
    assert isinstance(found, int)
    return found


def cut(url: str) -> int:
    """How many segments were split. Each of them has to have a rest."""
    rests = count(url, "run < 0")
    assert rests == count(url, "layout like '+%'")
    return rests


async def grown(store: PostgresStore, run_id: str, worker: str, sizes: list[int]) -> list[bytes]:
    """A run with segments of these sizes; its bodies."""
    bodies = [b"begin", *(random.Random(size).randbytes(size) for size in sizes)]
    claim = await create_claimed(store, worker, make_run(run_id, bodies[0]))
    for seq, body in enumerate(bodies[1:], 1):
        await store.append(claim, make_append(seq, body))
    return bodies


async def test_segments_of_every_size_are_loaded_as_they_were_written(url: str, store: PostgresStore) -> None:
    dice = random.Random(5)
    about = [0, 1, 90, 130, 700, 2300, 5000, 8060, 8100, 9000]
    sizes = {f"run-{n}": [dice.choice(about) + dice.randrange(40) for _ in range(30)] for n in range(8)}
    worker = await add_worker(store)
    written = await asyncio.gather(*(grown(store, run_id, worker, each) for run_id, each in sizes.items()))
    assert cut(url) > 20
    for run_id, bodies in zip(sizes, written, strict=True):
        assert await load_bodies(store, run_id) == bodies
        assert [entry.body for entry in (await store.load(run_id, after=17)).entries] == bodies[18:]


async def test_several_stores_write_the_same_pages(url: str, store: PostgresStore) -> None:
    async with open_store(url) as second:
        worker = await add_worker(store)
        written = await asyncio.gather(
            *(grown(each, f"run-{n}", worker, [2300 + n] * 20) for n, each in enumerate((store, second, store, second)))
        )
        assert cut(url) > 5
        for n, bodies in enumerate(written):
            assert await load_bodies(store, f"run-{n}") == bodies


@pytest.mark.parametrize("saves", [(1097 + 1059 + 139,), (1097, 1059 + 139)], ids=["one save a step", "two"])
async def test_a_run_occupies_little_more_than_its_transcript(
    url: str, store: PostgresStore, saves: tuple[int, ...]
) -> None:
    """Steps of two messages of a thousand bytes, with what is recorded around them."""
    steps = 1000
    await grown(store, "run-1", await add_worker(store), [*saves] * steps)
    [(occupied,)] = asked(url, "select pg_relation_size('holdfast.segment') + pg_indexes_size('holdfast.segment')")
    assert isinstance(occupied, int)
    assert occupied <= 1.3 * 2000 * steps


async def test_what_was_cut_is_removed_with_its_run(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    await grown(store, "run-1", worker, [3000] * 20)
    kept = await grown(store, "run-2", worker, [3000] * 20)
    before = cut(url)
    await store.remove("run-1", claim=await store.claim("run-1", worker, steal=True))
    await wait_until(lambda: _swept(url))
    assert 0 < cut(url) < before
    assert await load_bodies(store, "run-2") == kept
    await store.remove("run-2", claim=await store.claim("run-2", worker, steal=True))
    await wait_until(lambda: _swept(url))
    assert count(url, "true") == 0
    assert await list_run_ids(store) == []


async def test_what_was_cut_is_removed_with_what_a_rewrite_replaced(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    await grown(store, "run-1", worker, [3000] * 20)
    before = cut(url)
    claim = await store.claim("run-1", worker, steal=True)
    bodies = [b"compacted", *(b"%d" % n * 2000 for n in range(22, 32))]
    await store.append(claim, make_append(21, bodies[0], rewrite=True))
    for seq, body in enumerate(bodies[1:], 22):
        await store.append(claim, make_append(seq, body))
    await wait_until(lambda: _swept(url))
    assert 0 < cut(url) < before
    assert await load_bodies(store) == bodies


@pytest.mark.parametrize(
    "spoil",
    [
        "delete from holdfast.segment where run < 0",
        "update holdfast.segment set body = set_byte(body, 0, get_byte(body, 0) # 1) where run < 0",
        "update holdfast.segment set seq = seq + 1000 where run < 0",
        "update holdfast.segment set layout = ltrim(layout, '+')",
    ],
)
async def test_damage_to_what_was_cut_is_found(url: str, store: PostgresStore, spoil: str) -> None:
    await grown(store, "run-1", await add_worker(store), [3000] * 10)
    assert cut(url)
    asked(url, spoil)
    with pytest.raises(RunDamaged):
        await store.load("run-1")


async def _swept(url: str) -> bool:
    return not asked(url, "select 1 from holdfast.garbage")
