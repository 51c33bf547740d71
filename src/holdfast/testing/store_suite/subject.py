"""The store under test: how it is built, and what the clauses are tried with."""

import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import ClassVar

import pytest
import pytest_asyncio

from holdfast.checkpoint.claim import Claim, Worker
from holdfast.checkpoint.journal import Entry, EntryKind, Write
from holdfast.checkpoint.liveness import this_process
from holdfast.checkpoint.record import NewRun, RunFilter, RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_child import store_builder


class StoreUnderTest:
    """What a subclass says about its store: `factory` and `location`."""

    #: `module:function`. Called with a location, gives a store that is not open yet. Child processes import it too.
    factory: ClassVar[str] = "holdfast.checkpoint.opening:store_from_url"
    #: How long to wait for what a store has to do by itself. Long, so that a busy machine is no failure.
    patience: ClassVar[timedelta] = timedelta(seconds=60)
    #: How long to try random sequences of calls; twice as long where processes are killed.
    sequence_seconds: ClassVar[float] = 3

    @pytest.fixture
    def location(self) -> str:
        """Where the store keeps its runs: a new, empty place for each test."""
        raise NotImplementedError("override the fixture `location`: a string that `factory` makes a store from")

    def build(self, location: str) -> CheckpointStore:
        return store_builder(self.factory)(location)

    @pytest_asyncio.fixture
    async def store(self, location: str) -> AsyncIterator[CheckpointStore]:
        """An empty store, open."""
        store = self.build(location)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @pytest_asyncio.fixture
    async def worker(self, store: CheckpointStore) -> str:
        """The id of a live worker."""
        return await enlisted(store)


def a_worker() -> Worker:
    """A worker in this process."""
    return Worker(worker_id=f"worker-{uuid.uuid4().hex}", process=this_process())


async def enlisted(store: CheckpointStore) -> str:
    """A new worker in this process that the store knows as alive; its id."""
    worker = a_worker()
    await store.enlist(worker)
    return worker.worker_id


def entries(first: int, *bodies: bytes, kind: EntryKind = EntryKind.MESSAGE) -> list[Entry]:
    """Entries with these bodies, numbered from `first`."""
    return [Entry(seq=seq, kind=kind, body=body) for seq, body in enumerate(bodies, first)]


def a_run(
    run_id: str = "run-1",
    *bodies: bytes,
    agent_name: str = "agent",
    caller_id: str = "caller",
    parent_run_id: str | None = None,
    meta: bytes = b"meta",
    progress: bytes = b"progress",
) -> NewRun:
    """A run whose journal begins with `bodies`, or with one entry."""
    return NewRun(
        run_id=run_id,
        agent_name=agent_name,
        caller_id=caller_id,
        parent_run_id=parent_run_id,
        meta=meta,
        progress=progress,
        entries=entries(0, *(bodies or (b"begin",)), kind=EntryKind.BEGIN),
    )


def a_write(
    first: int, *bodies: bytes, progress: bytes = b"progress", replace: bool = False, finished_step: bool = False
) -> Write:
    return Write(entries=entries(first, *bodies), progress=progress, replace=replace, finished_step=finished_step)


async def begun(store: CheckpointStore, worker_id: str, run: NewRun | None = None) -> Claim:
    """The claim on a new run that `worker_id` drives."""
    claim = await store.create(run or a_run(), worker_id=worker_id)
    assert claim is not None, "a run created for a worker is claimed by it"
    return claim


async def contents(store: CheckpointStore, run_id: str = "run-1") -> tuple[RunRecord, list[Entry]]:
    """Everything the store gives out about a run. Equal before and after what must change nothing."""
    stored = await store.load(run_id)
    return stored.record, list(stored.entries)


async def record_of(store: CheckpointStore, run_id: str = "run-1") -> RunRecord:
    return (await store.load(run_id)).record


async def bodies_of(store: CheckpointStore, run_id: str = "run-1") -> list[bytes]:
    return [entry.body for entry in (await store.load(run_id)).entries]


async def listed(store: CheckpointStore, wanted: RunFilter | None = None) -> list[str]:
    """The ids of the runs that the store lists, in its order."""
    return [record.run_id async for record in store.records(wanted)]


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.run_id for claim in claims]
