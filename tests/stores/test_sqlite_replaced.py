"""A SQLite file that is deleted or replaced while it is open: nothing is acknowledged that only a nameless file has."""

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from tests.stores.postgres_support import wait_until

from holdfast.checkpoint.errors import StoreReplaced
from holdfast.db.sqlite_tables import SqliteTables
from holdfast.db.tables import Cursor, Schema, TablesError
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    make_append,
    make_run,
)

#: Longer than the second for which a check of the files is valid.
IDLE_S = 1.2
#: Longer than the pause after which the files are checked all the same.
PAUSE_S = 0.1


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, lease_timeout=timedelta(seconds=1))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        file.unlink()


def rename(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replace(path: Path) -> None:
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def delete_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def delete_index(path: Path) -> None:
    path.with_name(path.name + "-shm").unlink()


CHANGES = [delete, delete_all, rename, replace, delete_log, delete_index]


@pytest.mark.parametrize("change", CHANGES)
async def test_the_first_write_after_a_pause_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        claim = await create_claimed(store, await add_worker(store))
        await asyncio.sleep(IDLE_S)
        await store.append(claim, make_append(1, b"kept"))  # the files are checked
        await asyncio.sleep(PAUSE_S)
        change(path)
        left = {file.name for file in tmp_path.iterdir()}
        with pytest.raises(StoreReplaced, match=r"runs\.db.* was deleted or replaced") as refused:
            await store.append(claim, make_append(2, b"lost"))
        assert "restart" in str(refused.value)
        with pytest.raises(StoreReplaced):
            await store.create(make_run("another"))
        with pytest.raises(StoreReplaced):
            await store.load("run-1")
        assert {file.name for file in tmp_path.iterdir()} == left, "no file is created"


async def test_a_link_that_leads_to_another_file_is_noticed(tmp_path: Path) -> None:
    link = tmp_path / "current.db"
    link.symlink_to(tmp_path / "old.db")
    async with opened(link) as store:
        claim = await create_claimed(store, await add_worker(store))
        async with opened(tmp_path / "new.db"):
            await asyncio.sleep(IDLE_S)
            await store.append(claim, make_append(1, b"kept"))
            link.unlink()
            link.symlink_to(tmp_path / "new.db")
            await asyncio.sleep(IDLE_S)
            with pytest.raises(StoreReplaced):
                await store.append(claim, make_append(2, b"lost"))


async def test_writes_without_a_pause_are_refused_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "runs.db") as store:
        claim = await create_claimed(store, await add_worker(store))
        delete_all(tmp_path / "runs.db")

        async def append_without_end() -> None:
            for seq in itertools.count(1):
                await store.append(claim, make_append(seq, b"more"))

        with pytest.raises(StoreReplaced):
            await asyncio.wait_for(append_without_end(), 20)


async def test_a_file_that_comes_back_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        worker = await add_worker(store)
        claim = await create_claimed(store, worker)
        await asyncio.sleep(IDLE_S)
        away = tmp_path / "away.db"
        path.rename(away)
        with pytest.raises(StoreReplaced):
            await store.append(claim, make_append(1, b"refused"))
        away.rename(path)
        await store.append(claim, make_append(1, b"again"))
        assert await load_bodies(store) == [b"begin", b"again"]


async def test_a_store_that_is_opened_again_uses_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(path)
    await store.open()
    await store.create(make_run("old"))
    delete_all(path)
    await store.close()
    assert not path.exists(), "closing writes to the old file only"
    await store.open()
    await store.create(make_run("new"))
    assert await list_run_ids(store) == ["new"]
    await store.close()


async def test_a_reader_that_never_writes_notices(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with opened(path) as store:
        await store.create(make_run("old"))
        assert await list_run_ids(store) == ["old"]
        delete_all(path)
        await asyncio.sleep(IDLE_S)
        with pytest.raises(StoreReplaced):
            await list_run_ids(store)


async def test_tables_in_the_file_refuse_too(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    tables = SqliteTables(path)
    schema = Schema(name="test", migrations=(("CREATE TABLE spent (amount INTEGER)",),))

    async def spend(cursor: Cursor) -> None:
        await cursor.execute("INSERT INTO spent VALUES (1)")

    await tables.open(schema)
    await tables.transaction(spend)
    delete_all(path)
    with pytest.raises(TablesError, match="was deleted or replaced"):
        await tables.transaction(spend)
    assert not path.exists()
    await tables.close()
    await tables.open(schema)
    await tables.transaction(spend)
    await tables.close()


WORKER = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path
from holdfast import Agent, App, Reply, ToolCall, tool
from holdfast.stores.sqlite import SqliteStore

path, ledger = Path(sys.argv[1]), Path(sys.argv[2])
calls = 0

@tool
async def charge(n: int) -> str:
    with ledger.open("a") as file:
        file.write(f"{n}\\n")
    await asyncio.sleep(0.05)
    return "charged"

async def model(messages, tools):
    global calls
    calls += 1
    return Reply(tool_calls=[ToolCall(id=f"call-{calls}", name="charge", arguments={"n": calls})])

async def main():
    store = SqliteStore(path, lease_timeout=timedelta(seconds=1))
    async with App([Agent(name="payer", model=model, tools=[charge])], store) as app:
        print("started", flush=True)
        try:
            await app.run("payer", "pay", run_id="job-1")
        except Exception as exc:
            print(type(exc).__name__, "|", exc, "|", repr(exc.__cause__), flush=True)

asyncio.run(main())
"""


async def test_a_worker_makes_no_more_once_calls_for_a_run_whose_file_is_gone(tmp_path: Path) -> None:
    path, ledger = tmp_path / "runs.db", tmp_path / "ledger"
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), str(path), str(ledger)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    assert worker.stdout is not None

    async def has_charged() -> bool:
        return ledger.exists() and len(ledger.read_text().splitlines()) >= 3

    try:
        async with asyncio.timeout(60):
            assert await worker.stdout.readline() == b"started\n"
            await wait_until(has_charged)
            delete_all(path)
            output, log = await worker.communicate()
        assert b"was deleted or replaced" in output, (output, log)
        assert worker.returncode == 0, log
        assert not path.exists(), "no process writes to a new file under the old name"
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()
