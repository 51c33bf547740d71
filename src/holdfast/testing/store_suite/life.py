"""Clauses about the store itself: open and closed, what it hands out, the names it takes."""

import asyncio
import string
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import msgspec
import pytest

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import RunNotFound, StoreClosed
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.subject import (
    StoreUnderTest,
    a_run,
    a_worker,
    a_write,
    begun,
    bodies_of,
    contents,
    entries,
    listed,
)

_CLAIM = Claim(run_id="run-1", worker_id="worker", token=1, strikes=1)

CALLS: dict[str, Callable[[CheckpointStore], Awaitable[object]]] = {
    "enlist": lambda store: store.enlist(a_worker()),
    "discharge": lambda store: store.discharge("worker"),
    "create": lambda store: store.create(a_run("run-2")),
    "append": lambda store: store.append(_CLAIM, a_write(1, b"more")),
    "load": lambda store: store.load("run-1"),
    "settle": lambda store: store.settle(_CLAIM, Ending(status=Status.DONE)),
    "remove": lambda store: store.remove("run-1"),
    "records": lambda store: listed(store),
    "claim": lambda store: store.claim("run-1", "worker"),
    "claim_next": lambda store: store.claim_next("worker", agents=["agent"], limit=1),
    "request_cancel": lambda store: store.request_cancel("run-1"),
    "cancels": lambda store: store.cancels("worker"),
    "changed": lambda store: store.changed(timedelta(seconds=1)),
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
class OpenClauses(StoreUnderTest):
    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_closed_store_does_nothing_and_says_so(
        self, store: CheckpointStore, call: Callable[[CheckpointStore], Awaitable[object]]
    ) -> None:
        await store.create(a_run())
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
        waiting = asyncio.ensure_future(store.changed(self.patience * 2))
        await asyncio.wait([waiting], timeout=0.05)
        await store.close()
        async with asyncio.timeout(self.patience.total_seconds()):
            [result] = await asyncio.gather(waiting, return_exceptions=True)
        assert isinstance(result, bool | StoreClosed)


@pytest.mark.asyncio
class IsolationClauses(StoreUnderTest):
    async def test_what_was_handed_in_may_be_changed_afterwards(self, store: CheckpointStore, worker: str) -> None:
        first = list(a_run().entries)
        claim = await begun(store, worker, msgspec.structs.replace(a_run(), entries=first))
        first.clear()
        more = entries(1, b"one", b"two")
        await store.append(claim, Write(entries=more, progress=b""))
        more.clear()
        last = entries(3, b"last")
        await store.settle(claim, Ending(status=Status.PARKED, entries=last))
        last.clear()
        assert await bodies_of(store) == [b"begin", b"one", b"two", b"last"]

    async def test_what_was_handed_out_may_be_changed_afterwards(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker)
        await store.append(claim, a_write(1, b"one"))
        await store.request_cancel("run-1")
        before = await contents(store)
        _empty((await store.load("run-1")).entries)
        _empty(await store.cancels(worker))
        assert await contents(store) == before
        assert list(await store.cancels(worker)) == ["run-1"]

    async def test_what_was_handed_out_stays_as_it_was(self, store: CheckpointStore, worker: str) -> None:
        claim = await begun(store, worker)
        loaded = await store.load("run-1")
        before = (loaded.record.next_seq, loaded.record.status, list(loaded.entries))
        await store.append(claim, a_write(1, b"one"))
        await store.append(claim, a_write(2, b"compacted", replace=True))
        await store.settle(claim, Ending(status=Status.DONE))
        assert (loaded.record.next_seq, loaded.record.status, list(loaded.entries)) == before

    async def test_records_and_entries_cannot_be_changed(self, store: CheckpointStore, worker: str) -> None:
        await begun(store, worker)
        stored = await store.load("run-1")
        for thing, name in ((stored, "record"), (stored.record, "status"), (stored.entries[0], "body")):
            with pytest.raises(AttributeError):
                setattr(thing, name, None)
        assert type(stored.entries[0].body) is bytes
        assert (type(stored.record.meta), type(stored.record.progress)) == (bytes, bytes)


@pytest.mark.asyncio
class NameClauses(StoreUnderTest):
    async def test_every_legal_id_names_a_run_of_its_own(self, store: CheckpointStore, worker: str) -> None:
        claims = {}
        for run_id in ODD_IDS:
            with pytest.raises(RunNotFound):
                await store.load(run_id)
            claims[run_id] = await begun(store, worker, a_run(run_id, run_id.encode()))
        for run_id, claim in claims.items():
            await store.append(claim, a_write(1, f"{run_id} goes on".encode()))
        assert await listed(store) == ODD_IDS
        for run_id in ODD_IDS:
            assert await bodies_of(store, run_id) == [run_id.encode(), f"{run_id} goes on".encode()]
        for run_id in ODD_IDS[::2]:
            await store.remove(run_id, claim=claims[run_id])
        assert await listed(store) == ODD_IDS[1::2]


def _empty(handed_out: Sequence[object]) -> None:
    """Do to it what its type allows."""
    if hasattr(handed_out, "clear"):
        handed_out.clear()
