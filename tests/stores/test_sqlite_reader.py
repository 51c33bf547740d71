"""How the SQLite store reads: in threads of its own, with few statements, and nothing that is not what was written."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.checkpoint.errors import RunDamaged, StoreClosed
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.database import Database, statement
from holdfast.stores.sqlite.reader import ReaderThreads
from holdfast.stores.sqlite.transaction import Execute
from holdfast.testing.store_processes.store_under_test import (
    add_worker,
    create_claimed,
    load_bodies,
    make_append,
    make_run,
)


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def reading(path: Path) -> ReaderThreads:
    database = Database(path, durability="full", timeout=timedelta(seconds=60))
    database.prepare()
    return ReaderThreads(database, asyncio.get_running_loop())


def this_thread(execute: Execute) -> int:
    return threading.get_ident()


async def test_reads_that_follow_one_another_share_a_thread_and_its_pages(tmp_path: Path) -> None:
    threads = reading(tmp_path / "runs.db")
    assert len({await threads.submit(this_thread) for _ in range(20)}) == 1
    await threads.stop()


async def test_a_long_read_holds_up_no_other(tmp_path: Path) -> None:
    threads = reading(tmp_path / "runs.db")
    for _ in range(3):
        began, may_end = threading.Event(), threading.Event()

        def long(execute: Execute, began: threading.Event = began, may_end: threading.Event = may_end) -> int:
            began.set()
            may_end.wait(60)
            return threading.get_ident()

        answer = threads.submit(long)
        await asyncio.to_thread(began.wait, 60)
        others = {await threads.submit(this_thread) for _ in range(3)}
        others |= set(await asyncio.gather(*(threads.submit(this_thread) for _ in range(10))))
        assert not answer.done()
        may_end.set()
        assert await answer not in others
    await threads.stop()


async def test_what_was_asked_for_is_answered_though_the_store_closes(tmp_path: Path) -> None:
    threads = reading(tmp_path / "runs.db")
    began, may_end = threading.Event(), threading.Event()

    def long(execute: Execute) -> str:
        began.set()
        may_end.wait(60)
        return "long"

    def failing(execute: Execute) -> None:
        raise ZeroDivisionError

    answers: list[asyncio.Future[Any]] = [threads.submit(long), threads.submit(failing)]
    answers += [threads.submit(this_thread) for _ in range(5)]
    await asyncio.to_thread(began.wait, 60)
    stopping = asyncio.ensure_future(threads.stop())
    await asyncio.sleep(0)  # one turn of the loop: from now on it is closed
    with pytest.raises(StoreClosed):
        threads.submit(this_thread)
    may_end.set()
    await stopping
    long_answer, failure, *others = await asyncio.gather(*answers, return_exceptions=True)
    assert long_answer == "long"
    assert isinstance(failure, ZeroDivisionError)
    assert all(isinstance(ident, int) for ident in others)


async def test_a_second_thread_that_helps_while_the_store_closes_does_not_keep_the_first_one(tmp_path: Path) -> None:
    threads = reading(tmp_path / "runs.db")
    reads = [LongRead(), LongRead()]
    answers = []
    for read in reads:  # the first thread, and then the second one
        answers.append(threads.submit(read))
        await asyncio.to_thread(read.began.wait, 60)
    stopping = asyncio.ensure_future(threads.stop())
    await asyncio.sleep(0)  # one turn of the loop: both threads have been asked to stop
    reads[1].may_end.set()
    second = await answers[1]
    await asyncio.to_thread(second.join, 60)
    assert not second.is_alive()
    reads[0].may_end.set()
    first = await answers[0]
    await asyncio.to_thread(first.join, 10)
    assert not first.is_alive()
    await stopping


class LongRead:
    """A read that takes until it may end. Returns its thread."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def __call__(self, execute: Execute) -> threading.Thread:
        self.began.set()
        self.may_end.wait(60)
        return threading.current_thread()


async def test_a_load_prepares_no_statement_twice(tmp_path: Path) -> None:
    """SQLite does, for a statement that it would plan by what is bound: that took as long as the statement itself."""
    path = tmp_path / "runs.db"
    async with opened(path):
        pass
    connection = apsw.Connection(str(path))
    prepared: list[int] = []

    def asked(operation: int, *what: str | None) -> int:
        prepared.append(operation)
        return apsw.SQLITE_OK

    connection.authorizer = asked
    for name, bindings in (
        ("load_record", [("run-1",), ("run-2",)]),
        ("get_worker", [("worker-1",), ("worker-2",)]),
        ("read_segment", [(1, 1), (2, 2)]),
    ):
        connection.execute(statement(name), bindings[0]).fetchall()
        assert prepared, "the first time has to be seen"
        prepared.clear()
        connection.execute(statement(name), bindings[1]).fetchall()
        assert prepared == [], f"{name} was prepared again"
    connection.close()


@pytest.mark.parametrize("after", [-1, 0, 1, 15, 16, 17, 31, 32, 33, 100, 151, 152])
async def test_a_part_of_a_journal_is_found_wherever_it_begins(tmp_path: Path, after: int) -> None:
    async with opened(tmp_path / "runs.db") as store:
        worker = await add_worker(store)
        claim = await create_claimed(store, worker, make_run("run-1", b"0"))
        other = await create_claimed(store, worker, make_run("run-2", b"0"))
        for seq in range(1, 151, 3):
            await store.append(claim, make_append(seq, *(b"%d" % n for n in range(seq, seq + 3))))
            await store.append(other, make_append((seq + 2) // 3, b"other"))
        stored = await store.load("run-1", after=after)
        assert [entry.seq for entry in stored.entries] == list(range(after + 1, 151))
        assert [entry.body for entry in stored.entries] == [b"%d" % seq for seq in range(after + 1, 151)]


async def bodies_unless_damaged(store: SqliteStore, run_id: str) -> list[bytes] | None:
    try:
        return await load_bodies(store, run_id)
    except RunDamaged:
        return None


async def test_no_flipped_bit_of_a_row_goes_unnoticed(tmp_path: Path) -> None:
    """Of what SQLite writes before a body: how long all is, and of which types; the numbers, and the layout."""
    whole, path = tmp_path / "whole.db", tmp_path / "runs.db"
    body = b"the body that is in the file but once"
    async with opened(whole) as store:
        worker = await add_worker(store)
        claim = await create_claimed(store, worker, make_run("run-1", b"zero"))
        other = await create_claimed(store, worker, make_run("run-2", b"zero"))
        await store.append(claim, make_append(1, body))
        await store.append(other, make_append(1, b"one"))
        await store.append(claim, make_append(2, b"two"))
        await store.deregister_worker(worker)
    content = whole.read_bytes()
    [end] = [n + len(body) for n in range(len(content)) if content.startswith(body, n)]
    # A row begins with its length and its key, a byte each.
    [size] = [n for n in range(40) if content[end - len(body) - n] == len(body) + n - 2]
    start = end - len(body) - size
    for bit in range(8 * start, 8 * (end - len(body) + 1)):
        spoilt = bytearray(content)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoilt)
        async with opened(path) as store:
            found = await bodies_unless_damaged(store, "run-1")
            if found is not None:
                assert found == [b"zero", body, b"two"]
                # The type of `segment_key`: SQLite has it before the row, and nothing reads this.
                assert bit // 8 - start == 3
            # By the keys SQLite finds its way to the rows beside it, too.
            if bit // 8 > start + 1:
                assert await load_bodies(store, "run-2") == [b"zero", b"one"]
