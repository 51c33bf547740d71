"""Clauses about the store itself: open and closed, what it hands out, the names it takes."""

import asyncio
import string
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import msgspec
import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import RunNotFound, StoreClosed
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.store_under_test import (
    StoreUnderTest,
    create_claimed,
    list_run_ids,
    load_bodies,
    load_contents,
    make_append,
    make_entries,
    make_run,
    make_worker,
)

_CLAIM = Claim(run_id="run-1", worker_id="worker", token=1, strikes=1)

CALLS: dict[str, Callable[[CheckpointStore], Awaitable[object]]] = {
    "register_worker": lambda store: store.register_worker(make_worker()),
    "deregister_worker": lambda store: store.deregister_worker("worker"),
    "create": lambda store: store.create(make_run("run-2")),
    "append": lambda store: store.append(_CLAIM, make_append(1, b"more")),
    "load": lambda store: store.load("run-1"),
    "get_record": lambda store: store.get_record("run-1"),
    "release": lambda store: store.release(_CLAIM, Release(status=RunStatus.DONE)),
    "remove": lambda store: store.remove("run-1"),
    "list_runs": lambda store: list_run_ids(store),
    "claim": lambda store: store.claim("run-1", "worker"),
    "claim_next": lambda store: store.claim_next("worker", agents=["agent"], limit=1),
    "request_cancel": lambda store: store.request_cancel("run-1"),
    "pending_cancellations": lambda store: store.pending_cancellations("worker"),
    "wait_for_change": lambda store: store.wait_for_change(timedelta(seconds=1)),
    "purge": lambda store: store.purge(),
}

#: Legal ids that a file system, a shell or a careless store might take for something else, or for one another.
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
    "meta",
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
    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_closed_store_does_nothing_and_says_so(
        self, store: CheckpointStore, call: Callable[[CheckpointStore], Awaitable[object]]
    ) -> None:
        await store.create(make_run())
        await store.close()
        with pytest.raises(StoreClosed):
            await call(store)

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_store_that_was_never_opened_says_so(
        self, location: str, call: Callable[[CheckpointStore], Awaitable[object]]
    ) -> None:
        with pytest.raises(StoreClosed):
            await call(self.build(location))

    async def test_a_store_may_be_closed_again(self, store: CheckpointStore) -> None:
        await store.close()
        await store.close()
        await asyncio.gather(store.close(), store.close())

    async def test_a_store_that_was_never_opened_may_be_closed(self, location: str) -> None:
        await self.build(location).close()

    async def test_closing_ends_the_waits_for_a_change(self, store: CheckpointStore) -> None:
        waiting = asyncio.ensure_future(store.wait_for_change(self.timeout * 2))
        await asyncio.wait([waiting], timeout=0.05)
        await store.close()
        async with asyncio.timeout(self.timeout.total_seconds()):
            [result] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(result, bool | StoreClosed)


@pytest.mark.asyncio
class IsolationTests(StoreUnderTest):
    async def test_what_was_handed_in_may_be_changed_afterwards(self, store: CheckpointStore, worker: str) -> None:
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

    async def test_what_was_handed_out_may_be_changed_afterwards(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        await store.append(claim, make_append(1, b"one"))
        await store.request_cancel("run-1")
        before = await load_contents(store)
        _clear_if_mutable((await store.load("run-1")).entries)
        _clear_if_mutable(await store.pending_cancellations(worker))
        assert await load_contents(store) == before
        assert list(await store.pending_cancellations(worker)) == ["run-1"]

    async def test_what_was_handed_out_stays_as_it_was(self, store: CheckpointStore, worker: str) -> None:
        claim = await create_claimed(store, worker)
        loaded = await store.load("run-1")
        before = (loaded.record.next_seq, loaded.record.status, list(loaded.entries))
        await store.append(claim, make_append(1, b"one"))
        await store.append(claim, make_append(2, b"compacted", rewrite=True))
        await store.release(claim, Release(status=RunStatus.DONE))
        assert (loaded.record.next_seq, loaded.record.status, list(loaded.entries)) == before

    async def test_records_and_entries_cannot_be_changed(self, store: CheckpointStore, worker: str) -> None:
        await create_claimed(store, worker)
        stored = await store.load("run-1")
        for thing, name in ((stored, "record"), (stored.record, "status"), (stored.entries[0], "body")):
            with pytest.raises(AttributeError):
                setattr(thing, name, None)
        assert type(stored.entries[0].body) is bytes
        assert (type(stored.record.meta), type(stored.record.progress)) == (bytes, bytes)


@pytest.mark.asyncio
class RunIdTests(StoreUnderTest):
    async def test_every_legal_id_names_a_run_of_its_own(self, store: CheckpointStore, worker: str) -> None:
        claims = {}
        for run_id in ODD_IDS:
            with pytest.raises(RunNotFound):
                await store.load(run_id)
            claims[run_id] = await create_claimed(store, worker, make_run(run_id, run_id.encode()))
        for run_id, claim in claims.items():
            await store.append(claim, make_append(1, f"{run_id} goes on".encode()))
        assert await list_run_ids(store) == ODD_IDS
        for run_id in ODD_IDS:
            assert await load_bodies(store, run_id) == [run_id.encode(), f"{run_id} goes on".encode()]
        for run_id in ODD_IDS[::2]:
            await store.remove(run_id, claim=claims[run_id])
        assert await list_run_ids(store) == ODD_IDS[1::2]


def _clear_if_mutable(handed_out: Sequence[object]) -> None:
    """Do to it what its type allows."""
    if hasattr(handed_out, "clear"):
        handed_out.clear()
