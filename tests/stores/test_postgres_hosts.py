"""Workers on different hosts know each other by their heartbeats, measured by the server's clock."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterator
from datetime import datetime, timedelta
from typing import LiteralString

import psycopg
import pytest
from tests.postgres_pool import open_empty_postgres
from tests.stores.postgres_support import LONG, fail_after_timeout, open_store, wait_until

from holdfast.checkpoint.errors import ClaimLost, RunBusy
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.workers import Claim, ProcessIdentity, WorkerIdentity, this_process
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_process import StoreProcess
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    get_run_ids,
    list_run_ids,
    load_bodies,
    load_record,
    make_append,
    make_run,
)

ELSEWHERE = "another-host"
SOON = timedelta(seconds=1)


def store_that_gives_up_soon(url: str) -> PostgresStore:
    """Whose workers other hosts take for dead after a second of silence. Child processes make it too."""
    return PostgresStore(url, lease_timeout=SOON)


@pytest.fixture
def url() -> Iterator[str]:
    with open_empty_postgres() as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(url) as store:
        yield store


def a_worker_elsewhere(process: ProcessIdentity | None = None) -> WorkerIdentity:
    """A worker that seems to be on another host, whatever its process really is."""
    process = process or this_process()
    identity = ProcessIdentity(host=ELSEWHERE, pid=process.pid, started=process.started)
    return WorkerIdentity(worker_id=f"elsewhere-{uuid.uuid4().hex}", process=identity)


async def alive_until(url: str, worker: WorkerIdentity) -> datetime:
    return await _asked(url, "select alive_until from holdfast.worker where worker_id = %s", worker.worker_id)


async def now(url: str) -> datetime:
    """By the server's clock."""
    return await _asked(url, "select now()")


async def _asked(url: str, question: LiteralString, *parameters: str) -> datetime:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        row = await (await connection.execute(question, parameters)).fetchone()
    assert row is not None
    answer: datetime = row[0]
    return answer


async def _is_past(moment: Awaitable[datetime], other: datetime) -> bool:
    return await moment > other


async def _any_interrupted(store: PostgresStore) -> bool:
    return bool(await list_run_ids(store, RunFilter(interrupted=True)))


async def _is_driven(store: PostgresStore) -> bool:
    return (await load_record(store)).owner_alive


async def taken_over(store: PostgresStore, run_id: str, worker_id: str) -> Claim:
    """The claim, as soon as the owner counts as dead."""
    async with fail_after_timeout():
        while True:
            try:
                return await store.claim(run_id, worker_id)
            except RunBusy:
                await asyncio.sleep(0.05)


async def test_a_silent_worker_elsewhere_is_taken_over_and_fenced(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    async with StoreProcess(f"{__name__}:store_that_gives_up_soon", url) as frozen:
        owner = a_worker_elsewhere(frozen.child.identity)
        await frozen.register_worker(owner)
        old = await create_claimed(frozen, owner.worker_id)
        await frozen.append(old, make_append(1, b"before"))
        with pytest.raises(RunBusy):
            await store.claim("run-1", worker)
        await frozen.child.pause()
        late = asyncio.ensure_future(frozen.append(old, make_append(2, b"late")))
        new = await taken_over(store, "run-1", worker)
        assert new.token > old.token
        await store.append(new, make_append(2, b"by the new owner"))
        frozen.child.unpause()
        with pytest.raises(ClaimLost) as lost:
            async with fail_after_timeout():
                await late
        assert lost.value.current == new.token
        assert await load_bodies(store) == [b"begin", b"before", b"by the new owner"]


async def test_silent_workers_elsewhere_lose_their_runs_to_claim_next_too(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    async with StoreProcess(f"{__name__}:store_that_gives_up_soon", url) as frozen:
        owner = a_worker_elsewhere(frozen.child.identity)
        await frozen.register_worker(owner)
        for n in range(3):
            await create_claimed(frozen, owner.worker_id, make_run(f"run-{n}"))
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == []
        await frozen.child.pause()
        await wait_until(lambda: _any_interrupted(store))
        assert not (await load_record(store, "run-0")).owner_alive
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == ["run-0", "run-1", "run-2"]
        frozen.child.unpause()


async def test_a_worker_elsewhere_stays_alive_by_its_heartbeat(url: str, store: PostgresStore) -> None:
    async with open_store(url, lease_timeout=SOON) as far:
        owner = a_worker_elsewhere()
        await far.register_worker(owner)
        await create_claimed(far, owner.worker_id)
        first = await alive_until(url, owner)
        # Past the moment at which it would have been dead without a beat.
        await wait_until(lambda: _is_past(alive_until(url, owner), first + 2 * SOON))
        assert (await load_record(store)).owner_alive
        with pytest.raises(RunBusy):
            await store.claim("run-1", await add_worker(store))


async def test_a_blocked_event_loop_does_not_make_its_worker_look_dead(url: str) -> None:
    async with open_store(url, lease_timeout=SOON) as far:
        owner = a_worker_elsewhere()
        await far.register_worker(owner)
        first = await alive_until(url, owner)
        deadline = time.monotonic() + LONG
        with psycopg.connect(url, autocommit=True) as connection:
            # Nothing of the event loop runs in here: this test is what blocks it.
            while time.monotonic() < deadline:
                [(until,)] = connection.execute("select alive_until from holdfast.worker").fetchall()
                if until > first + 2 * SOON:
                    break
                time.sleep(0.05)  # noqa: ASYNC251  what is tested
        assert until > first + 2 * SOON


async def test_a_live_process_of_this_host_is_never_taken_over_however_silent(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    async with StoreProcess(f"{__name__}:store_that_gives_up_soon", url) as frozen:
        owner = WorkerIdentity(worker_id="here", process=frozen.child.identity)
        await frozen.register_worker(owner)
        await create_claimed(frozen, owner.worker_id)
        await frozen.child.pause()
        silent_since = await alive_until(url, owner)
        await wait_until(lambda: _is_past(now(url), silent_since + SOON))
        assert (await load_record(store)).owner_alive
        with pytest.raises(RunBusy):
            await store.claim("run-1", worker)
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == []
        frozen.child.unpause()


async def test_a_worker_elsewhere_that_says_goodbye_is_gone_at_once(url: str, store: PostgresStore) -> None:
    worker = await add_worker(store)
    async with open_store(url) as far:
        owner = a_worker_elsewhere()
        await far.register_worker(owner)
        await create_claimed(far, owner.worker_id)
        await far.deregister_worker(owner.worker_id)
        assert (await store.claim("run-1", worker)).strikes == 2


async def test_a_worker_elsewhere_keeps_its_claims_when_its_store_is_closed(url: str, store: PostgresStore) -> None:
    async with open_store(url) as far:
        owner = a_worker_elsewhere()
        await far.register_worker(owner)
        await create_claimed(far, owner.worker_id)
    with pytest.raises(RunBusy):
        await store.claim("run-1", await add_worker(store))


async def test_after_a_start_of_the_server_silent_workers_are_given_their_time(url: str) -> None:
    """While it was down it could not hear them. It runs for less than a day."""
    async with open_store(url, lease_timeout=timedelta(days=1)) as store:
        owner = a_worker_elsewhere()
        await store.register_worker(owner)
        await create_claimed(store, owner.worker_id)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("update holdfast.worker set alive_until = now() - interval '1 second'")
            assert (await load_record(store)).owner_alive
            with pytest.raises(RunBusy):
                await store.claim("run-1", await add_worker(store))
            await connection.execute("update holdfast.worker set dead_after = interval '1 microsecond'")
            assert (await load_record(store)).is_interrupted


async def test_a_worker_that_was_suspended_until_its_row_was_deleted_registers_again(
    url: str, store: PostgresStore
) -> None:
    async with open_store(url, lease_timeout=SOON) as far:
        owner = a_worker_elsewhere()
        await far.register_worker(owner)
        await create_claimed(far, owner.worker_id)
        heartbeat = far._require_open().heartbeat
        with heartbeat._beat_lock, psycopg.connect(url, autocommit=True) as connection:
            connection.execute("delete from holdfast.worker")
            heartbeat._sent_at -= timedelta(days=8)
        await wait_until(lambda: _is_driven(store))
        assert (await load_record(store)).owner == owner.worker_id
