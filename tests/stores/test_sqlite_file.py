"""The SQLite store's file: how it is created, and which files are accepted."""

import asyncio
import contextlib
import re
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib import resources
from pathlib import Path

import apsw
import pytest
from tests.stores.version_fixture import FOLDER, describe, read_expected

from holdfast.checkpoint.errors import CheckpointError, RunDamaged, SchemaTooNew, StoreError, StorePermissionError
from holdfast.checkpoint.record import Release, RunFilter, RunStatus
from holdfast.db.sqlite_file import PAGE_SIZE
from holdfast.db.sqlite_tables import SqliteTables
from holdfast.db.tables import Schema, TablesUnavailable
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.database import Database, load_migrations
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    load_contents,
    make_append,
    make_run,
    make_worker,
)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _a_store_with_a_run(path: Path) -> None:
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        await store.append(claim, make_append(1, b"saved"))
        await store.release(claim, Release(status=RunStatus.INTERRUPTED))


async def _make_file_of_many_runs(path: Path) -> bytes:
    async with opened(path) as store:
        worker = await add_worker(store)
        for n in range(20):
            claim = await create_claimed(store, worker, make_run(f"run-{n}"))
            await store.append(claim, make_append(1, b"x" * 3000))
        await store.deregister_worker(worker)
    return path.read_bytes()


async def test_a_folder_that_does_not_exist_is_created(tmp_path: Path) -> None:
    path = tmp_path / "some" / "new" / "folder" / "runs.db"
    await _a_store_with_a_run(path)
    async with opened(path) as store:
        assert await load_bodies(store) == [b"begin", b"saved"]


async def test_a_closed_store_is_one_file(tmp_path: Path) -> None:
    await _a_store_with_a_run(tmp_path / "runs.db")
    assert [path.name for path in tmp_path.iterdir()] == ["runs.db"]


async def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="folder"):
        await SqliteStore(tmp_path).open()


async def test_a_folder_that_cannot_be_made_is_denied_or_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"runs\.db"):
        await SqliteStore(tmp_path / "file" / "folder" / "runs.db").open()
    with pytest.raises(StorePermissionError, match="permissions"):
        await SqliteStore("/sys/holdfast/runs.db").open()


async def test_a_file_that_is_locked_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last process to close the file, or the first to read its log, locks it: at any moment of the opening."""
    path = tmp_path / "runs.db"
    await _a_store_with_a_run(path)
    locks: list[apsw.Connection] = []
    prepare, sleep = Database.prepare, time.sleep

    def prepare_then_lock(database: Database) -> None:
        prepare(database)
        other = apsw.Connection(str(path))
        other.pragma("locking_mode", "exclusive")
        other.execute("BEGIN IMMEDIATE")
        locks.append(other)

    def unlock(seconds: float) -> None:
        if locks:
            locks.pop().close()
        sleep(seconds)

    monkeypatch.setattr(Database, "prepare", prepare_then_lock)
    monkeypatch.setattr(time, "sleep", unlock)
    async with opened(path) as store:
        assert not locks, "it was locked, and the opening has waited"
        assert await load_bodies(store) == [b"begin", b"saved"]


@pytest.mark.parametrize("content", [b"not a database\n" * 1000, b"\0" * 100_000], ids=["text", "zeros"])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "runs.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="no SQLite database"):
        await SqliteStore(path).open()
    assert path.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["runs.db"]


async def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE runs (mine); INSERT INTO runs VALUES (1)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        await SqliteStore(path).open()
    assert path.read_bytes() == before


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await _a_store_with_a_run(path)
    newer = len(load_migrations()) + 1
    connection = apsw.Connection(str(path))
    connection.pragma("user_version", newer)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew) as refused:
        await SqliteStore(path).open()
    assert (refused.value.found, refused.value.known) == (newer, newer - 1)
    assert path.read_bytes() == before


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    await _a_store_with_a_run(tmp_path / "runs.db")


async def test_many_open_a_new_store_at_once(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "new" / "runs.db") for _ in range(10)]
    await asyncio.gather(*(store.open() for store in stores))
    for n, store in enumerate(stores):
        await store.create(make_run(f"run-{n}"))
    assert await list_run_ids(stores[0]) == [f"run-{n}" for n in range(10)]
    await asyncio.gather(*(store.close() for store in stores))


def _strip_comments(sql: str) -> str:
    return " ".join(re.sub("--.*", "", sql).split())


async def test_a_migrated_file_has_the_schema_of_a_new_one(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "sqlite-v1.db", tmp_path / "old.db")
    schemas = []
    for name in ("old.db", "new.db"):
        async with opened(tmp_path / name):
            connection = apsw.Connection(str(tmp_path / name))
            rows = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()
            connection.close()
            schemas.append([(kind, name, _strip_comments(str(sql))) for kind, name, sql in rows])
    assert schemas[0] == schemas[1]


def test_migrations_are_numbered_without_a_gap() -> None:
    folder = resources.files("holdfast.stores.sqlite") / "sql" / "migrations"
    numbers = sorted(int(file.name.partition("_")[0]) for file in folder.iterdir() if file.name.endswith(".sql"))
    assert numbers == list(range(1, len(load_migrations()) + 1))


async def test_a_relative_path_names_the_same_file_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with opened(Path("runs.db")) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        # These open the connections of the heartbeat and of the reader.
        claim = await create_claimed(store, await add_worker(store))
        await store.append(claim, make_append(1, b"saved"))
        await store.wait_for_change(timedelta(milliseconds=1))
        assert await load_bodies(store) == [b"begin", b"saved"]
        assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("version", range(1, len(load_migrations()) + 1))
async def test_a_file_of_every_earlier_version_opens_and_continues(tmp_path: Path, version: int) -> None:
    """How such a file is made: tests/stores/version_fixture.py."""
    path = tmp_path / "runs.db"
    shutil.copy(FOLDER / f"sqlite-v{version}.db", path)
    expected = read_expected(version)
    async with opened(path) as store:
        assert await describe(store) == expected
        found = {run_id: await load_contents(store, run_id) for run_id in await list_run_ids(store)}
        for status in {record.status for record, _ in found.values()}:
            page = await store.list_page(RunFilter(statuses=frozenset({status})))
            assert [run.run_id for run in page.records] == [
                name for name in reversed(expected) if found[name][0].status == status
            ]
        worker = await add_worker(store)
        for record, journal in reversed(found.values()):
            claim = await store.claim(record.run_id, worker, statuses=frozenset(RunStatus))
            assert claim.token > record.token
            await store.append(claim, make_append(record.next_seq, b"continued"))
            assert (await load_bodies(store, record.run_id))[len(journal) :] == [b"continued"]
            await store.remove(record.run_id, claim=claim)
        assert await list_run_ids(store) == []


DAMAGE = (
    "body = x'6f6e45'",
    "layout = 'r' || substr(layout, 2)",
    "layout = 'z' || substr(layout, 2)",
    "layout = layout || '0'",
    "layout = ''",
    "layout = CAST(x'ff' AS TEXT)",
    "seq = 700",
    "checksum = checksum + 1",
    "run_key = run_key + 1",
    "before = 0",
    "before = segment_key + 1",
    "before = segment_key",
    "before = before - 1",
)


async def test_every_way_to_damage_a_journal_is_noticed(tmp_path: Path) -> None:
    whole = tmp_path / "whole.db"
    bodies = [b"%d" % seq for seq in range(200)]
    async with opened(whole) as store:
        worker = await add_worker(store)
        for run_id in ("run-1", "run-2"):
            claim = await create_claimed(store, worker, make_run(run_id, bodies[0]))
            for seq, body in enumerate(bodies[1:], 1):
                await store.append(claim, make_append(seq, body))
        await store.deregister_worker(worker)
    changes = [f"UPDATE segments SET {damage} WHERE segment_key = {{}}" for damage in DAMAGE]
    for number, damage in enumerate((*changes, "DELETE FROM segments WHERE segment_key = {}")):
        for key in (200, 150, 1):
            path = tmp_path / f"damaged-{number}-{key}.db"
            shutil.copy(whole, path)
            connection = apsw.Connection(str(path))
            connection.execute(damage.format(key))
            assert connection.changes() == 1
            connection.close()
            async with opened(path) as store:
                if damage.startswith("UPDATE segments SET before") and key == 1:
                    # The load ends at the first entry, so only the garbage collection reads this.
                    assert await load_bodies(store) == bodies
                else:
                    with pytest.raises(RunDamaged):
                        await store.load("run-1")
                assert await load_bodies(store, "run-2") == bodies
                await store.remove("run-1")
                assert await list_run_ids(store) == ["run-2"]


async def test_removing_a_damaged_run_leaves_the_entries_of_others(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        worker = await add_worker(store)
        for run_id in ("run-1", "run-2"):
            claim = await create_claimed(store, worker, make_run(run_id, b"zero"))
            await store.append(claim, make_append(1, b"one"))
            await store.append(claim, make_append(2, b"two"))
        await store.deregister_worker(worker)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE segments SET before = 2 WHERE segment_key = 5")
    async with opened(path) as store:
        await store.remove("run-2")
    async with opened(path) as store:
        assert await load_bodies(store, "run-1") == [b"zero", b"one", b"two"]
    assert connection.execute("SELECT count(*) FROM garbage").get == 0
    connection.close()


def _list_truncations(size: int) -> Iterator[int]:
    """Lengths at, before and behind the boundaries of pages, and some within pages."""
    yield from (1, 99, 511, 512, 4095, 4096)
    for page in range(PAGE_SIZE, size + 1, PAGE_SIZE):
        yield from (page - PAGE_SIZE // 2, page - 1, page, page + 1)


async def _use(store: SqliteStore) -> None:
    """Call each kind of read and write once. Errors of the store are fine, any other is not."""
    await store.open()
    try:
        worker = make_worker()
        for work in (
            lambda: list_run_ids(store),
            lambda: store.load("run-7"),
            lambda: store.register_worker(worker),
            lambda: store.create(make_run("new")),
            lambda: store.claim("run-3", worker.worker_id),
            lambda: store.claim_next(worker.worker_id, agents=["agent"], limit=3),
            lambda: store.purge(),
        ):
            with contextlib.suppress(CheckpointError):
                await work()
    finally:
        await store.close()


async def test_a_truncated_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    whole = await _make_file_of_many_runs(tmp_path / "whole.db")
    path = tmp_path / "runs.db"
    for length in _list_truncations(len(whole)):
        if length < len(whole):
            path.write_bytes(whole[:length])
            with pytest.raises(StoreError, match=r"truncated.*backup"):
                await SqliteStore(path).open()
            assert path.read_bytes() == whole[:length], length


@pytest.mark.filterwarnings("ignore")
async def test_no_other_error_gets_out_of_a_truncated_file_with_a_log(tmp_path: Path) -> None:
    path, copy = tmp_path / "whole.db", tmp_path / "runs.db"
    whole = await _make_file_of_many_runs(path)
    async with opened(path) as store:
        await store.create(make_run("late"))
        log = path.with_name("whole.db-wal").read_bytes()
    for length in [*range(PAGE_SIZE, len(whole), PAGE_SIZE), *range(PAGE_SIZE // 2, len(whole), PAGE_SIZE)]:
        for file in tmp_path.glob("runs.db*"):
            file.unlink()
        copy.write_bytes(whole[:length])
        copy.with_name("runs.db-wal").write_bytes(log)
        with contextlib.suppress(StoreError):
            await _use(SqliteStore(copy))


async def test_a_page_of_zeros_is_no_bare_error(tmp_path: Path) -> None:
    """As a file system leaves it that lost the newest data of a file, but not its length."""
    whole = await _make_file_of_many_runs(tmp_path / "whole.db")
    path = tmp_path / "runs.db"
    for start in range(PAGE_SIZE, len(whole), PAGE_SIZE):
        for file in tmp_path.glob("runs.db*"):
            file.unlink()
        # The header of the page stays.
        path.write_bytes(whole[: start + 64] + bytes(PAGE_SIZE - 64) + whole[start + PAGE_SIZE :])
        with contextlib.suppress(StoreError):
            await _use(SqliteStore(path))


async def test_a_failed_connect_is_raised(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await _a_store_with_a_run(path)
    connection = apsw.Connection(str(path))
    connection.execute("ALTER TABLE counters RENAME TO lost")
    with pytest.raises(StoreError, match="no such table"):
        await SqliteStore(path).open()
    connection.execute("ALTER TABLE lost RENAME TO counters")
    connection.close()
    async with opened(path) as store:
        assert await load_bodies(store) == [b"begin", b"saved"]


async def test_a_failed_connect_of_the_tables_is_raised(tmp_path: Path) -> None:
    tables = SqliteTables(tmp_path / "runs.db", timeout=timedelta(milliseconds=1))
    other = apsw.Connection(str(tmp_path / "runs.db"))
    other.execute("BEGIN EXCLUSIVE")
    schema = Schema(name="test", migrations=[["CREATE TABLE test (a)"]])
    with pytest.raises(TablesUnavailable, match="locked"):
        await tables.open(schema)
    other.execute("ROLLBACK")
    other.close()
    await tables.open(schema)
    await tables.close()


async def _make_log(path: Path, steps: int) -> tuple[bytes, bytes]:
    """Return the file and its log as a crash leaves them after this many saves."""
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        for seq in range(1, steps + 1):
            await store.append(claim, make_append(seq, b"%d" % seq))
        return path.read_bytes(), path.with_name(path.name + "-wal").read_bytes()


async def test_a_damaged_log_loses_the_commits_from_the_damage_on_and_no_others(tmp_path: Path) -> None:
    file, log = await _make_log(tmp_path / "whole.db", 20)
    path, found = tmp_path / "runs.db", []
    for place in (len(log) - 1000, len(log) - 200_000):
        path.write_bytes(file)
        path.with_name("runs.db-wal").write_bytes(log[:place] + b"\xff" + log[place + 1 :])
        async with opened(path) as store:
            found.append(await load_bodies(store))
    assert len(found[1]) < len(found[0]) < 21
    for bodies in found:
        assert bodies == [b"begin", *(b"%d" % seq for seq in range(1, len(bodies)))]
