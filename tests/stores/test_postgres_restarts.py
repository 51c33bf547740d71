"""The server goes away and comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from tests.postgres_server import LocalServer
from tests.stores.postgres_support import LONG, fail_after_timeout, open_store

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.workers import Claim
from holdfast.stores.postgres import PostgresStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    make_append,
    make_run,
    make_worker,
)

RUNS = 25
RESTARTS = 4


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(url) as store:
        yield store


@contextlib.asynccontextmanager
async def down(server: LocalServer) -> AsyncIterator[None]:
    """In here there is no server."""
    await asyncio.to_thread(server.stop)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


class _Driver:
    """Drives a run, write by write, and knows what was acknowledged."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        self._store, self.name = store, name
        self.acknowledged: list[bytes] = []

    async def drive(self, worker: str, stop: asyncio.Event) -> None:
        claim = await create_claimed(self._store, worker, make_run(self.name))
        self.acknowledged.append(b"begin")
        while not stop.is_set():
            body = f"{self.name} {len(self.acknowledged)}".encode()
            await self._store.append(claim, make_append(len(self.acknowledged), body))
            self.acknowledged.append(body)

    async def further(self, writes: int) -> None:
        """Return once this many further writes were acknowledged."""
        goal = len(self.acknowledged) + writes
        while len(self.acknowledged) < goal:  # noqa: ASYNC110  an event for each write would change their rhythm
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_a_restart_under_many_writes_loses_and_doubles_nothing(
    server: LocalServer, url: str, store: PostgresStore, crash: bool
) -> None:
    worker, stop = await add_worker(store), asyncio.Event()
    drivers = [_Driver(store, f"run-{n}") for n in range(RUNS)]
    async with fail_after_timeout(), asyncio.TaskGroup() as tasks:
        for driver in drivers:
            tasks.create_task(driver.drive(worker, stop))
        for _ in range(RESTARTS):
            await asyncio.gather(*(driver.further(3) for driver in drivers))
            # Each of them has a write in progress at any moment.
            await asyncio.to_thread(server.stop, crash=crash)
            await asyncio.to_thread(server.start)
        await asyncio.gather(*(driver.further(3) for driver in drivers))
        stop.set()
    async with open_store(url) as witness:
        for driver in drivers:
            assert await load_bodies(witness, driver.name) == driver.acknowledged


Call = Callable[[PostgresStore, Claim], Awaitable[object]]

CALLS: dict[str, Call] = {
    "append": lambda store, claim: store.append(claim, make_append(1, b"more")),
    "create": lambda store, claim: store.create(make_run("run-2")),
    "load": lambda store, claim: store.load("run-1"),
    "release": lambda store, claim: store.release(claim, Release(status=RunStatus.DONE)),
    "remove": lambda store, claim: store.remove("run-1", claim=claim),
    "list_page": lambda store, claim: list_run_ids(store),
    "claim": lambda store, claim: store.claim("run-1", claim.worker_id, steal=True),
    "claim_next": lambda store, claim: store.claim_next(claim.worker_id, agents=["agent"], limit=1),
    "register_worker": lambda store, claim: store.register_worker(make_worker()),
    "deregister_worker": lambda store, claim: store.deregister_worker(claim.worker_id),
    "request_cancel": lambda store, claim: store.request_cancel("run-1"),
    "pending": lambda store, claim: store.pending(claim.worker_id),
    "purge": lambda store, claim: store.purge(),
}


async def test_every_call_waits_for_a_server_that_is_away_for_a_moment(
    server: LocalServer, store: PostgresStore
) -> None:
    claims = {name: await create_claimed(store, await add_worker(store), make_run(name)) for name in CALLS}
    async with down(server):
        calls = {name: asyncio.ensure_future(_on_its_own_run(name)(store, claims[name])) for name in CALLS}
        await asyncio.wait(calls.values(), timeout=0.3)
        assert [name for name, call in calls.items() if call.done()] == []
    async with fail_after_timeout():
        await asyncio.gather(*calls.values())


def _on_its_own_run(name: str) -> Call:
    """The call, on the run that is named like it, so that they do not disturb each other."""
    others: dict[str, Call] = {
        "load": lambda store, claim: store.load("load"),
        "remove": lambda store, claim: store.remove("remove", claim=claim),
        "claim": lambda store, claim: store.claim("claim", claim.worker_id, steal=True),
        "request_cancel": lambda store, claim: store.request_cancel("request_cancel"),
    }
    return others.get(name, CALLS[name])


async def test_every_call_finally_gives_up_and_succeeds_when_the_server_is_back(server: LocalServer, url: str) -> None:
    async with open_store(url), open_store(url, timeout=timedelta(seconds=1)) as store:
        claims = {name: await create_claimed(store, await add_worker(store), make_run(name)) for name in CALLS}
        async with down(server), fail_after_timeout():
            calls = (_on_its_own_run(name)(store, claims[name]) for name in CALLS)
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(result) for result in results] == [StoreUnavailable] * len(CALLS)
        async with fail_after_timeout():
            for name in CALLS:
                await _on_its_own_run(name)(store, claims[name])
        assert await load_bodies(store, "append") == [b"begin", b"more"]


async def test_a_store_that_is_closed_while_the_server_is_away_lets_go(server: LocalServer, url: str) -> None:
    async with open_store(url), fail_after_timeout(), open_store(url, timeout=timedelta(seconds=1)) as store:
        claim = await create_claimed(store, await add_worker(store))
        await asyncio.to_thread(server.stop)
        try:
            writing = asyncio.ensure_future(store.append(claim, make_append(1, b"more")))
            await asyncio.sleep(0)
            await store.close()
            with pytest.raises(StoreUnavailable):
                await writing
        finally:
            await asyncio.to_thread(server.start)


async def test_changes_are_heard_of_again_after_a_restart(server: LocalServer, url: str) -> None:
    async with open_store(url) as store, open_store(url) as other, fail_after_timeout():
        async with down(server):
            pass
        for n in range(1000):
            sign = asyncio.ensure_future(store.wait_for_change(timedelta(seconds=LONG)))
            await asyncio.sleep(0)
            await other.create(make_run(f"run-{n}"))
            await sign
            if store.is_listening:
                break
        assert store.is_listening
        while await store.wait_for_change(timedelta(milliseconds=50)):
            pass
        sign = asyncio.ensure_future(store.wait_for_change(timedelta(seconds=2 * LONG)))
        await asyncio.sleep(0)
        await other.create(make_run("run-last"))
        assert await sign
