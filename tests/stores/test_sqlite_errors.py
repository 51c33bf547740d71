"""Errors of the disk and of locks: each error says what to do, and the store works again afterwards."""

import asyncio
import ctypes
import os
import resource
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from holdfast.checkpoint.errors import StoreError, StoreFull, StorePermissionError, StoreUnavailable
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.stores.sqlite import SqliteStore, writer
from holdfast.testing.store_processes.store_process import StoreProcess
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    make_append,
    make_run,
)


@asynccontextmanager
async def opened(path: Path, *, timeout: timedelta = timedelta(seconds=60)) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, timeout=timeout)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def locked(path: Path) -> Iterator[apsw.Connection]:
    """Meanwhile another connection writes."""
    connection = apsw.Connection(str(path))
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        connection.execute("ROLLBACK")
        connection.close()


class Holder(threading.Thread):
    """Writes from another connection until the event loop has gone on, or has stood still for too long."""

    def __init__(self, resumed: threading.Event, path: Path) -> None:
        super().__init__()
        self._resumed, self._path = resumed, path
        self.has_it = threading.Event()
        self.in_time = False

    def run(self) -> None:
        with locked(self._path):
            self.has_it.set()
            self.in_time = self._resumed.wait(timeout=60)


@contextmanager
def held_until(resumed: threading.Event, path: Path) -> Iterator[Holder]:
    holder = Holder(resumed, path)
    holder.start()
    holder.has_it.wait()
    try:
        yield holder
    finally:
        resumed.set()
        holder.join()


# -- no room -----------------------------------------------------------------------------------------------------------


async def test_without_room_nothing_is_lost_and_with_room_it_continues(tmp_path: Path) -> None:
    factory = "holdfast.stores.from_url:store_from_url"
    async with StoreProcess(factory, f"sqlite:{tmp_path / 'runs.db'}") as store:
        pid, [_, hard] = store.child.identity.pid, resource.getrlimit(resource.RLIMIT_FSIZE)
        claims = [await create_claimed(store, await add_worker(store), make_run(f"run-{n}")) for n in range(3)]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (2_000_000, hard))
        saved, full = 0, None
        while full is None and saved < 1000:
            try:
                await store.append(claims[0], make_append(saved + 1, b"x" * 20_000))
                saved += 1
            except StoreFull as exc:
                full = exc
        assert "free space" in str(full)
        for _ in range(2):
            writes = (store.append(claim, make_append(1, b"x" * 20_000)) for claim in claims[1:])
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(result) for result in results] == [StoreFull] * 2
        assert len(await load_bodies(store, "run-0")) == saved + 1
        assert await list_run_ids(store) == ["run-0", "run-1", "run-2"]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        await store.append(claims[0], make_append(saved + 1, b"room again"))
        await store.append(claims[1], make_append(1, b"here too"))
        await store.close()
    async with opened(tmp_path / "runs.db") as again:
        assert await load_bodies(again, "run-0") == [b"begin", *[b"x" * 20_000] * saved, b"room again"]
        assert await load_bodies(again, "run-1") == [b"begin", b"here too"]


# -- no permission -----------------------------------------------------------------------------------------------------


def _as_ordinary_user(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    """Permissions mean nothing to root: run where that privilege is given up, for this thread and those it starts."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            if os.geteuid() == 0:
                header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
                assert ctypes.CDLL(None).capset(header, nothing) == 0
            asyncio.run(scenario())
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def test_a_folder_that_may_not_be_written_is_denied_until_it_may(tmp_path: Path) -> None:
    folder = tmp_path / "folder"

    async def scenario() -> None:
        async with opened(folder / "runs.db") as store:
            claim = await create_claimed(store, await add_worker(store))
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        folder.chmod(0o555)
        with pytest.raises(StorePermissionError, match="permissions"):
            await SqliteStore(folder / "runs.db").open()
        with pytest.raises(StorePermissionError, match="permissions"):
            await SqliteStore(folder / "deeper" / "runs.db").open()
        folder.chmod(0o755)
        async with opened(folder / "runs.db") as store:
            claim = await store.claim("run-1", await add_worker(store))
            await store.append(claim, make_append(1, b"allowed"))
            assert await load_bodies(store) == [b"begin", b"allowed"]

    _as_ordinary_user(scenario)


@pytest.mark.parametrize("mode", [0o000, 0o444], ids=["not read", "not written"])
def test_a_file_that_may_not_be_opened_is_denied_until_it_may(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "runs.db"

    async def scenario() -> None:
        async with opened(path) as store:
            claim = await create_claimed(store, await add_worker(store))
            await store.release(claim, Release(status=RunStatus.INTERRUPTED))
        path.chmod(mode)
        with pytest.raises(StorePermissionError, match="permissions"):
            await SqliteStore(path).open()
        assert [path.name for path in tmp_path.iterdir()] == ["runs.db"], "nothing is left that may not be written"
        path.chmod(0o644)
        async with opened(path) as store:
            await store.create(make_run("run-2"))
            assert await list_run_ids(store) == ["run-1", "run-2"]

    _as_ordinary_user(scenario)


# -- another process has the lock --------------------------------------------------------------------------------------


async def test_a_locked_database_is_unavailable_after_the_timeout_and_works_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db", timeout=timedelta(milliseconds=100)) as store:
        claims = [await create_claimed(store, await add_worker(store), make_run(f"run-{n}")) for n in range(3)]
        with locked(tmp_path / "runs.db"):
            writes = (store.append(claim, make_append(1, b"late")) for claim in claims)
            results = await asyncio.gather(*writes, return_exceptions=True)
            assert [type(result) for result in results] == [StoreUnavailable] * 3
            assert await load_bodies(store, "run-0") == [b"begin"], "reads do not wait"
        for claim in claims:
            await store.append(claim, make_append(1, b"now"))
            assert await load_bodies(store, claim.run_id) == [b"begin", b"now"]


@pytest.mark.parametrize("quick", [0.0, 60.0], ids=["by the thread", "by the event loop's thread"])
async def test_the_event_loop_continues_while_a_write_waits_for_a_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: float
) -> None:
    monkeypatch.setattr(writer, "_INLINE_MAX_COMMIT_S", quick)
    monkeypatch.setattr(writer, "_INLINE_MAX_GAP_S", quick)
    async with opened(tmp_path / "runs.db") as store:
        claim = await create_claimed(store, await add_worker(store))
        for seq in range(1, 4):
            await store.append(claim, make_append(seq, b"before"))
        resumed = threading.Event()
        with held_until(resumed, tmp_path / "runs.db") as holder:
            waiting = asyncio.ensure_future(store.append(claim, make_append(4, b"after")))
            for _ in range(20):
                # Each of these is a turn of the event loop, and a read that does not wait.
                assert len(await load_bodies(store)) == 4
            assert not waiting.done()
            resumed.set()
            await waiting
        assert holder.in_time, "the event loop stood still as long as the lock was held"
        assert (await load_bodies(store))[-1] == b"after"


# -- one write of many -------------------------------------------------------------------------------------------------


async def test_a_write_that_sqlite_refuses_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        claims = [await create_claimed(store, await add_worker(store), make_run(f"run-{n}")) for n in range(9)]
        other = apsw.Connection(str(path))
        other.execute(
            "CREATE TRIGGER picky BEFORE INSERT ON segments WHEN new.body = CAST('firstbad' AS BLOB)"
            " BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        bodies = [b"bad" if n in (0, 4, 8) else b"good" for n in range(9)]
        writes = (
            store.append(claim, make_append(1, b"first", body)) for claim, body in zip(claims, bodies, strict=True)
        )
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [n for n, result in enumerate(results) if result is not None] == [0, 4, 8]
        assert all(type(results[n]) is StoreError for n in (0, 4, 8)), "no error of SQLite's gets out"
        other.execute("DROP TRIGGER picky")
        other.close()
        for n, claim in enumerate(claims):
            if bodies[n] == b"bad":
                assert await load_bodies(store, claim.run_id) == [b"begin"]
                await store.append(claim, make_append(1, b"first", b"bad"))
            assert await load_bodies(store, claim.run_id) == [b"begin", b"first", bodies[n]]


async def test_a_write_of_the_wrong_type_fails_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        claims = [await create_claimed(store, await add_worker(store), make_run(f"run-{n}")) for n in range(3)]
        wrong = make_append(1, "no bytes")  # type: ignore[arg-type]
        results = await asyncio.gather(
            store.append(claims[0], make_append(1, b"good")),
            store.append(claims[1], wrong),
            store.append(claims[2], make_append(1, b"good")),
            return_exceptions=True,
        )
        assert [result is None for result in results] == [True, False, True]
        await store.append(claims[1], make_append(1, b"good"))
        for claim in claims:
            assert await load_bodies(store, claim.run_id) == [b"begin", b"good"]


async def test_no_error_of_sqlites_gets_out_of_a_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        await store.create(make_run())
        other = apsw.Connection(str(path))
        other.execute("ALTER TABLE segments RENAME TO elsewhere")
        with pytest.raises(StoreError, match="no such table"):
            await store.load("run-1")
        other.execute("ALTER TABLE elsewhere RENAME TO segments")
        other.close()
        assert await load_bodies(store) == [b"begin"]
