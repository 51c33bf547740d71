"""A server that stops answering in the middle of a heartbeat."""

import asyncio
import sys
from datetime import datetime, timedelta

import psycopg
from tests.postgres_proxy import CuttingProxy, Harm
from tests.stores.postgres_support import fail_after_timeout, open_store, route_through, wait_until

from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import add_worker

BEAT = b".renew("
SOON = timedelta(seconds=2)

#: A process that leaves on request.
PROGRAM = f"""
import asyncio, contextlib, sys
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.testing.store_processes.store_under_test import add_worker
from {__name__} import a_store

async def main():
    store = a_store(sys.argv[1])
    await store.open()
    worker = await add_worker(store)
    print("registered", flush=True)
    sys.stdin.readline()
    with contextlib.suppress(StoreUnavailable):
        await store.deregister_worker(worker)
    await store.close()
    print("closed", flush=True)

asyncio.run(main())
"""


def a_store(url: str) -> PostgresStore:
    return PostgresStore(url, lease_timeout=SOON, timeout=timedelta(seconds=1))


async def _alive_until(url: str) -> datetime:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        [(until,)] = await (await connection.execute("select alive_until from holdfast.worker")).fetchall()
    assert isinstance(until, datetime)
    return until


async def test_the_next_beat_goes_over_another_connection(proxy: CuttingProxy, url: str) -> None:
    async with open_store(route_through(proxy, url), lease_timeout=SOON) as store, fail_after_timeout():
        await add_worker(store)
        proxy.harm(Harm.FALL_SILENT, BEAT)
        await proxy.landed.wait()
        silent_since = await _alive_until(url)

        async def is_heard_again() -> bool:
            return await _alive_until(url) > silent_since

        await wait_until(is_heard_again)


async def test_a_worker_that_another_process_deregistered_stays_deregistered(proxy: CuttingProxy, url: str) -> None:
    async with (
        open_store(route_through(proxy, url), lease_timeout=SOON) as store,
        open_store(url) as other,
        fail_after_timeout(),
    ):
        worker, further = await add_worker(store), await add_worker(store)
        proxy.harm(Harm.FALL_SILENT, BEAT)
        await proxy.landed.wait()
        await other.deregister_worker(worker)
        silent_since = await _alive_until(url)

        async def is_heard_again() -> bool:
            return await _alive_until(url) > silent_since

        await wait_until(is_heard_again)
        async with await psycopg.AsyncConnection.connect(url) as connection:
            left = await (await connection.execute("select worker_id from holdfast.worker")).fetchall()
        assert left == [(further,)]


async def test_a_worker_that_keeps_its_claims_is_heard_after_its_store_was_closed(url: str) -> None:
    store = a_store(url)
    await store.open()
    worker = await add_worker(store)
    await store.close()
    closed_at = await _alive_until(url)

    async def is_heard_again() -> bool:
        return await _alive_until(url) > closed_at

    await wait_until(is_heard_again)
    await store.open()
    await store.deregister_worker(worker)
    await store.close()


async def test_a_worker_is_deregistered_nevertheless(proxy: CuttingProxy, url: str) -> None:
    async with (
        open_store(route_through(proxy, url), lease_timeout=timedelta(seconds=10)) as store,
        fail_after_timeout(),
    ):
        worker = await add_worker(store)
        proxy.harm(Harm.FALL_SILENT, BEAT)
        await proxy.landed.wait()
        await store.deregister_worker(worker)
        async with await psycopg.AsyncConnection.connect(url) as connection:
            assert await (await connection.execute("select from holdfast.worker")).fetchall() == []


async def test_the_process_ends_though_the_server_never_answers(proxy: CuttingProxy, url: str) -> None:
    async with open_store(url):
        pass  # its tables are there
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, route_through(proxy, url)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with fail_after_timeout():
            assert await process.stdout.readline() == b"registered\n"
            proxy.harm(Harm.FALL_SILENT, BEAT, and_refuse=True)
            await proxy.landed.wait()
            process.stdin.write(b"leave\n")
            assert await process.stdout.readline() == b"closed\n"
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
