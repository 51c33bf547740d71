"""Tests of opening and closing, of the isolation of arguments and results, and of run ids."""

import asyncio
import string
import threading
from collections.abc import MutableSequence, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.errors import RunNotFound, StoreClosed
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.db.tables import Cursor, Schema, Tables, TablesError
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    add_worker,
    create_claimed,
    list_run_ids,
    load_bodies,
    load_contents,
    make_append,
    make_entries,
    make_mail,
    make_run,
    make_worker,
)

_CLAIM = Claim(run_id="run-1", worker_id="worker", token=1, strikes=1)

#: The arguments of a call of each method.
CALLS: dict[str, dict[str, Any]] = {
    "register_worker": {"worker": make_worker()},
    "deregister_worker": {"worker_id": "worker"},
    "create": {"run": make_run("run-2")},
    "append": {"claim": _CLAIM, "write": make_append(1, b"more")},
    "load": {"run_id": "run-1"},
    "release": {"claim": _CLAIM, "release": Release(status=RunStatus.DONE)},
    "remove": {"run_id": "run-1"},
    "list_workers": {},
    "read_fleet": {},
    "list_page": {},
    "claim": {"run_id": "run-1", "worker_id": "worker"},
    "claim_next": {"worker_id": "worker", "agents": ["agent"], "limit": 1},
    "post": {"run_id": "run-1", "mail": make_mail()},
    "pending": {"worker_id": "worker"},
    "request_cancel": {"run_id": "run-1"},
    "wait_for_change": {"timeout": timedelta(seconds=1)},
    "put_draft": {"claim": _CLAIM, "draft": b"Hel"},
    "read_draft": {"run_id": "run-1"},
    "set_limit": {"kind": "key", "name": "k", "max_runs": 1},
    "list_limits": {},
    "purge": {},
}

#: Legal ids that a file system, a shell or a store may misinterpret or confuse.
ODD_IDS = [
    ".",
    "..",
    "-",
    "-rf",
    "_",
    ":",
    "a:b",
    "a.b",
    "run",
    "RUN",
    "Run",
    "rUn",
    "CON",
    "con",
    "nul.txt",
    "COM1",
    "trailing.",
    ".hidden",
    *(f"run.{suffix}" for suffix in ("json", "jsonl", "lock", "tmp", "claim", "db", "bak")),
    "index",
    "info",
    "0",
    "00",
    "1e5",
    "null",
    "run:tool:1.2-3_4",
    string.ascii_letters + string.digits + "._:-",
    "x" * 200,
    "X" * 200,
    "x" * 199 + "y",
]


@pytest.mark.asyncio
class OpenCloseTests(StoreUnderTest):
    async def test_a_closed_store_refuses_every_call(self, store: RunStore) -> None:
        await store.create(make_run())
        await store.close()
        assert [method for method in CALLS if not await _is_refused(store, method)] == []

    async def test_a_store_that_was_never_opened_refuses_every_call(self, location: str) -> None:
        store = self.build(location)
        assert [method for method in CALLS if not await _is_refused(store, method)] == []

    async def test_a_store_may_be_closed_again(self, store: RunStore) -> None:
        await store.close()
        await store.close()
        await asyncio.gather(store.close(), store.close())

    async def test_a_store_that_was_never_opened_may_be_closed(self, location: str) -> None:
        await self.build(location).close()

    async def test_closing_ends_the_waits_for_a_change(self, store: RunStore) -> None:
        waiting = asyncio.ensure_future(store.wait_for_change(self.timeout * 2))
        await asyncio.wait([waiting], timeout=0.05)
        await store.close()
        async with asyncio.timeout(self.timeout.total_seconds()):
            [result] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(result, bool | StoreClosed)

    async def test_no_thread_is_left_after_close(self, location: str) -> None:
        before = set(threading.enumerate())
        store = self.build(location)
        await store.open()
        worker = await add_worker(store)
        await store.append(await create_claimed(store, worker), make_append(1, b"more"))
        await store.wait_for_change(timedelta(milliseconds=20))
        assert await list_run_ids(store) == ["run-1"]
        await store.deregister_worker(worker)  # else its heartbeat continues
        await store.close()
        # The threads of the event loop's own executor end with the loop.
        own = [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio_")]
        assert own == []


@pytest.mark.asyncio
class TablesTests(StoreUnderTest):
    async def test_a_store_has_one_object_with_tables(self, store: RunStore) -> None:
        assert store.tables() is store.tables()

    async def test_the_tables_hold_several_schemas(self, store: RunStore) -> None:
        for name in ("first", "second"):
            await open_table(store.tables(), name)
            await insert_row(store.tables(), name, f"a row of {name}")
        assert await read_rows(store.tables(), "first") == [("a row of first",)]
        assert await read_rows(store.tables(), "second") == [("a row of second",)]

    async def test_a_transaction_that_fails_changes_no_table(self, store: RunStore) -> None:
        await open_table(store.tables(), "first")
        with pytest.raises(TablesError):
            await store.tables().transaction(_insert_and_fail)
        assert await read_rows(store.tables(), "first") == []

    async def test_rows_of_tables_are_kept_while_the_store_is_closed(self, store: RunStore) -> None:
        await open_table(store.tables(), "first")
        await insert_row(store.tables(), "first", "kept")
        await store.close()
        await store.open()
        await open_table(store.tables(), "first")
        assert await read_rows(store.tables(), "first") == [("kept",)]

    async def test_no_thread_of_the_tables_is_left_after_close(self, location: str) -> None:
        before = set(threading.enumerate())
        store = self.build(location)
        await store.open()
        await open_table(store.tables(), "first")
        await store.close()
        own = [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio_")]
        for thread in own:
            thread.join(self.timeout.total_seconds())
        assert not any(thread.is_alive() for thread in own)


async def _insert_and_fail(cursor: Cursor) -> None:
    await cursor.execute("INSERT INTO suite_first VALUES (?)", ("lost",))
    await cursor.execute("INSERT INTO no_such_table VALUES (?)", ("lost",))


async def open_table(tables: Tables, name: str) -> None:
    """Create the table `suite_NAME`, as a battery does."""
    migration = [f"CREATE TABLE suite_{name} (body TEXT NOT NULL)"]
    await tables.open(Schema(name=f"suite-{name}", migrations=[migration]))


async def insert_row(tables: Tables, name: str, body: str) -> None:
    async def work(cursor: Cursor) -> None:
        await cursor.execute(f"INSERT INTO suite_{name} VALUES (?)", (body,))

    await tables.transaction(work)


async def read_rows(tables: Tables, name: str) -> Sequence[tuple[Any, ...]]:
    async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
        return await cursor.execute(f"SELECT body FROM suite_{name}")

    return await tables.read(work)


@pytest.mark.asyncio
class IsolationTests(StoreUnderTest):
    async def test_changing_an_argument_afterwards_changes_nothing(self, store: RunStore, worker: str) -> None:
        first = list(make_run().entries)
        claim = await create_claimed(store, worker, msgspec.structs.replace(make_run(), entries=first))
        first.clear()
        more = make_entries(1, b"one", b"two")
        await store.append(claim, Append(entries=more, progress=b""))
        more.clear()
        last = make_entries(3, b"last")
        await store.release(claim, Release(status=RunStatus.PARKED, entries=last))
        last.clear()
        assert await load_bodies(store) == [b"begin", b"one", b"two", b"last"]

    async def test_changing_a_result_changes_nothing(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"one"))
        await store.request_cancel("run-1")
        before = await load_contents(store)
        _clear_if_mutable((await store.load("run-1")).entries)
        _clear_if_mutable((await store.pending(worker)).cancels)
        assert await load_contents(store) == before
        assert list((await store.pending(worker)).cancels) == ["run-1"]

    async def test_a_result_does_not_change_afterwards(self, store: RunStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        loaded = await store.load("run-1")
        before = (loaded.record.next_seq, loaded.record.status, list(loaded.entries))
        await store.append(claim, make_append(1, b"one"))
        await store.append(claim, make_append(2, b"compacted", rewrite=True))
        await store.release(claim, Release(status=RunStatus.DONE))
        assert (loaded.record.next_seq, loaded.record.status, list(loaded.entries)) == before

    async def test_records_and_entries_are_immutable(self, store: RunStore, worker: str) -> None:
        await create_claimed(store, worker)
        stored = await store.load("run-1")
        for thing, name in ((stored, "record"), (stored.record, "status"), (stored.entries[0], "body")):
            with pytest.raises(AttributeError):
                setattr(thing, name, None)
        assert type(stored.entries[0].body) is bytes
        assert (type(stored.record.info), type(stored.record.progress)) == (bytes, bytes)


@pytest.mark.asyncio
class RunIdTests(StoreUnderTest):
    async def test_every_legal_id_is_a_run_of_its_own(self, store: RunStore, worker: str) -> None:
        claims = {}
        for run_id in ODD_IDS:
            with pytest.raises(RunNotFound):
                await store.load(run_id)
            claims[run_id] = await create_claimed(store, worker, make_run(run_id, run_id.encode()))
        for run_id, claim in claims.items():
            await store.append(claim, make_append(1, f"{run_id} again".encode()))
        assert await list_run_ids(store) == ODD_IDS
        for run_id in ODD_IDS:
            assert await load_bodies(store, run_id) == [run_id.encode(), f"{run_id} again".encode()]
        for run_id in ODD_IDS[::2]:
            await store.remove(run_id, claim=claims[run_id])
        assert await list_run_ids(store) == ODD_IDS[1::2]


async def _is_refused(store: RunStore, method: str) -> bool:
    """Return whether the method raises `StoreClosed`. Any other error is a failure."""
    try:
        await getattr(store, method)(**CALLS[method])
    except StoreClosed:
        return True
    return False


def _clear_if_mutable(result: Sequence[object]) -> None:
    if isinstance(result, MutableSequence):
        result.clear()
