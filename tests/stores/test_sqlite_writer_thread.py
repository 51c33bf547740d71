"""The writer thread: it shares its connection with the event loop's thread, and no caller waits for it forever."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from holdfast.checkpoint.errors import StoreError
from holdfast.stores.sqlite import SqliteStore, writer
from holdfast.stores.sqlite.vacuum import Vacuum
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    get_run_ids,
    load_bodies,
    make_append,
    make_run,
)

#: Only a failing test waits this long, in seconds.
TIMEOUT_S = 20


@asynccontextmanager
async def opened(path: Path, *, lease_timeout: timedelta = timedelta(seconds=30)) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, lease_timeout=lease_timeout)
    await store.open()
    try:
        yield store
    finally:
        async with asyncio.timeout(TIMEOUT_S):
            await store.close()


class Held(Vacuum):
    """Holds the writer's thread, on request, just before it asks the connection how much was written."""

    hold, is_held, resume, has_asked = (threading.Event() for _ in range(4))

    def idle_timeout(self) -> float | None:
        if threading.current_thread() is threading.main_thread() or not self.hold.is_set():
            return super().idle_timeout()
        self.is_held.set()
        self.resume.wait(TIMEOUT_S)
        try:
            return super().idle_timeout()
        finally:
            self.has_asked.set()

    @classmethod
    def committing(cls) -> bool:
        """Within a commit of the event loop's thread, wait until the other one has asked."""
        if cls.hold.is_set() and threading.current_thread() is threading.main_thread():
            cls.resume.set()
            cls.has_asked.wait(TIMEOUT_S)
        return False


async def test_the_thread_outlives_a_commit_of_the_event_loops_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"Vacuum": Held, "_INLINE_MAX_COMMIT_S": 60.0, "_INLINE_MAX_GAP_S": 60.0}.items():
        monkeypatch.setattr(writer, name, value)
    monkeypatch.setattr(apsw, "connection_hooks", [lambda connection: connection.set_commit_hook(Held.committing)])
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        Held.hold.set()
        claim = await create_claimed(store, worker)
        assert await asyncio.to_thread(Held.is_held.wait, TIMEOUT_S)
        saving = asyncio.ensure_future(store.append(claim, make_append(1, b"meanwhile")))
        for _ in range(10):
            await asyncio.sleep(0)
        Held.resume.set()
        async with asyncio.timeout(TIMEOUT_S):
            await saving
            await add_worker(store)
        assert await load_bodies(store) == [b"begin", b"meanwhile"]


class Broken(Vacuum):
    """On request, holds the writer's thread, and then ends it."""

    hold, is_held, resume = (threading.Event() for _ in range(3))

    def run_slice(self, budget: float, *, idle: bool) -> None:
        if self.hold.is_set():
            self.is_held.set()
            self.resume.wait(TIMEOUT_S)
            raise SystemExit("out of order")
        super().run_slice(budget, idle=idle)


@asynccontextmanager
async def breaking(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, lease_timeout: timedelta = timedelta(seconds=30)
) -> AsyncIterator[SqliteStore]:
    """A store whose thread is held when `hold` was called, and ends at `resume`."""
    for event in (Broken.hold, Broken.is_held, Broken.resume):
        event.clear()
    monkeypatch.setattr(writer, "Vacuum", Broken)
    async with opened(path, lease_timeout=lease_timeout) as store:
        yield store


async def hold(store: SqliteStore) -> "asyncio.Future[tuple[str | BaseException]]":
    """Return the outcome of the write that woke the thread."""
    Broken.hold.set()
    woken = asyncio.gather(add_worker(store), return_exceptions=True)
    assert await asyncio.to_thread(Broken.is_held.wait, TIMEOUT_S)
    return woken


async def test_when_the_thread_ends_no_caller_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with breaking(tmp_path / "runs.db", monkeypatch) as store:
        worker = await add_worker(store)
        claims = [await create_claimed(store, worker, make_run(f"run-{n}")) for n in range(3)]
        woken = await hold(store)
        waiting = [asyncio.ensure_future(store.append(claim, make_append(1, b"lost"))) for claim in claims]
        for _ in range(10):
            await asyncio.sleep(0)
        Broken.resume.set()
        async with asyncio.timeout(TIMEOUT_S):
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(result) for result in results] == [StoreError] * 3
            await woken
            with pytest.raises(StoreError, match="open it again"):
                await store.create(make_run("late"))
        assert [await load_bodies(store, claim.run_id) for claim in claims] == [[b"begin"]] * 3
        [logged] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert logged.exc_info is not None
        assert "out of order" in str(logged.exc_info[1])


async def test_a_close_in_progress_ends_when_the_thread_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with breaking(tmp_path / "runs.db", monkeypatch) as store:
        claim = await create_claimed(store, await add_worker(store))
        woken = await hold(store)
        waiting = asyncio.ensure_future(store.append(claim, make_append(1, b"lost")))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(store.close())
        for _ in range(10):
            await asyncio.sleep(0)
        Broken.resume.set()
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(StoreError):
                await waiting
            await woken
            await closing


async def test_a_store_whose_thread_has_ended_is_closed_and_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with breaking(tmp_path / "runs.db", monkeypatch) as store:
        worker = await add_worker(store)
        await create_claimed(store, worker)
        woken = await hold(store)
        Broken.resume.set()
        async with asyncio.timeout(TIMEOUT_S):
            await woken
            with pytest.raises(StoreError, match="open it again"):
                await store.deregister_worker(worker)
            await store.close()
        Broken.hold.clear()
        await store.open()
        heir = await add_worker(store)
        async with asyncio.timeout(TIMEOUT_S):  # the thread of the heartbeats deregisters the worker that has left
            while not (claims := await store.claim_next(heir, agents=["agent"], limit=1)):
                await store.wait_for_change(timedelta(milliseconds=50))
        await store.append(claims[0], make_append(1, b"continued"))


async def test_when_the_thread_ends_others_resume_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as other, breaking(path, monkeypatch, lease_timeout=timedelta(milliseconds=50)) as store:
        await create_claimed(store, await add_worker(store))
        heir = await add_worker(other)
        assert get_run_ids(await other.claim_next(heir, agents=["agent"], limit=1)) == []
        woken = await hold(store)
        Broken.resume.set()
        await woken
        async with asyncio.timeout(60):
            while not (taken := await other.claim_next(heir, agents=["agent"], limit=1)):
                await other.wait_for_change(timedelta(milliseconds=20))
        await other.append(taken[0], make_append(1, b"continued"))
