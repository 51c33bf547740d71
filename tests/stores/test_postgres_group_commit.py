"""Many runs that write at once: few batches, and each caller gets its own outcome."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from tests.postgres_pool import open_empty_postgres
from tests.stores.postgres_support import fail_after_timeout, open_store

from holdfast.checkpoint.errors import ClaimLost
from holdfast.checkpoint.workers import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    load_bodies,
    make_append,
    make_run,
)

#: More than the number of futures that are resolved in one turn of the event loop.
MANY = 100


@pytest.fixture
def url() -> Iterator[str]:
    with open_empty_postgres() as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(url) as store:
        yield store


def batches(url: str) -> int:
    """How many the store has written. Each has every second number."""
    with psycopg.connect(url) as connection:
        [(number,)] = connection.execute("select batch from holdfast.writer").fetchall()
    assert isinstance(number, int)
    return number // 2


async def claimed(store: PostgresStore) -> list[Claim]:
    worker = await add_worker(store)
    return await asyncio.gather(*(create_claimed(store, worker, make_run(f"run-{n}")) for n in range(MANY)))


async def test_runs_that_write_in_step_are_put_out_of_step(url: str, store: PostgresStore) -> None:
    """So that the server writes for some while the others go on; but the batches stay large."""
    claims, rounds = await claimed(store), 20

    async def write(claim: Claim) -> None:
        for seq in range(1, rounds + 1):
            await store.append(claim, make_append(seq, b"%d" % seq))

    before = batches(url)
    async with fail_after_timeout():
        await asyncio.gather(*map(write, claims))
    assert 1.5 * rounds < batches(url) - before < 4 * rounds
    assert await load_bodies(store, "run-7") == [b"begin", *(b"%d" % seq for seq in range(1, rounds + 1))]


async def test_each_caller_gets_the_outcome_of_its_own_write(store: PostgresStore) -> None:
    claims = await claimed(store)
    stolen = {n: await store.claim(f"run-{n}", claims[n].worker_id, steal=True) for n in range(5, MANY, 7)}
    async with fail_after_timeout():
        results = await asyncio.gather(
            *(store.append(claim, make_append(1, b"more")) for claim in claims), return_exceptions=True
        )
    lost = {n: result for n, result in enumerate(results) if result is not None}
    assert {n: result.current for n, result in lost.items() if isinstance(result, ClaimLost)} == {
        n: claim.token for n, claim in stolen.items()
    }
    assert len(lost) == len(stolen)


async def test_a_store_that_is_closed_notifies_all_callers_first(url: str) -> None:
    async with open_store(url) as store:
        claims = await claimed(store)
        writes = [asyncio.ensure_future(store.append(claim, make_append(1, b"more"))) for claim in claims]
        await asyncio.sleep(0)
        async with fail_after_timeout():
            await store.close()
            assert await asyncio.gather(*writes) == [None] * MANY
        await store.open()
        assert await load_bodies(store, f"run-{MANY - 1}") == [b"begin", b"more"]
