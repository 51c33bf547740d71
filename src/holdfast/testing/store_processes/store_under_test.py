"""The store under test: how it is built, and helpers for the tests."""

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar

import pytest
import pytest_asyncio

from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import Mail, NewRun, Release, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import END, RunStore, get_record, iter_runs
from holdfast.checkpoint.workers import Claim, WorkerIdentity, this_process
from holdfast.ids import make_id
from holdfast.testing.store_processes.store_process_main import load_store_factory


class StoreUnderTest:
    """What a subclass defines: `factory` and `location`."""

    #: `module:function`, from a location to a store that is not open. A string, because child processes import it too.
    factory: ClassVar[str] = "holdfast.stores.from_url:store_from_url"
    #: How long to wait for what a store does in the background. Long, because the machine may be busy.
    timeout: ClassVar[timedelta] = timedelta(seconds=60)
    #: How long to try random sequences of calls. Twice as long where processes are killed.
    sequence_seconds: ClassVar[float] = 3

    @pytest.fixture
    def location(self) -> str:
        """Return where the store keeps its runs: a new, empty location for each test."""
        raise NotImplementedError("override the fixture `location`: a string from which `factory` makes a store")

    def build(self, location: str) -> RunStore:
        return load_store_factory(self.factory)(location)

    @contextlib.asynccontextmanager
    async def open_store(self, location: str) -> AsyncIterator[RunStore]:
        store = self.build(location)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @pytest_asyncio.fixture
    async def store(self, location: str) -> AsyncIterator[RunStore]:
        """An open, empty store."""
        async with self.open_store(location) as store:
            yield store

    @pytest_asyncio.fixture
    async def worker(self, store: RunStore) -> str:
        """The id of a live worker."""
        return await add_worker(store)


def make_worker() -> WorkerIdentity:
    """Return a new worker in this process."""
    return WorkerIdentity(worker_id=f"worker-{make_id()}", process=this_process())


async def add_worker(store: RunStore) -> str:
    """Register a new worker in this process. Return its id."""
    worker = make_worker()
    await store.register_worker(worker)
    return worker.worker_id


def make_entries(first: int, *bodies: bytes, kind: EntryKind = EntryKind.MESSAGE) -> list[Entry]:
    """Return entries with these bodies, numbered from `first`."""
    return [Entry(seq=seq, kind=kind, body=body) for seq, body in enumerate(bodies, first)]


def make_run(
    run_id: str = "run-1",
    *bodies: bytes,
    agent_name: str = "agent",
    caller_id: str = "caller",
    parent_run_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    priority: int = 0,
    key: str | None = None,
    tenant: str = "",
    background: bool = False,
    not_before: datetime | None = None,
    info: bytes = b"info",
    progress: bytes = b"progress",
) -> NewRun:
    """Return a run whose journal starts with `bodies`, or with one entry."""
    return NewRun(
        run_id=run_id,
        agent_name=agent_name,
        caller_id=caller_id,
        parent_run_id=parent_run_id,
        labels=dict(labels or {}),
        priority=priority,
        concurrency_key=key or "",
        tenant=tenant,
        background=background,
        not_before=not_before,
        info=info,
        progress=progress,
        entries=make_entries(0, *(bodies or (b"begin",)), kind=EntryKind.BEGIN),
    )


def make_append(
    first: int,
    *bodies: bytes,
    progress: bytes = b"progress",
    rewrite: bool = False,
    step_finished: bool = False,
    consumed: Sequence[str] = (),
    unless_mail: Sequence[str] = (),
) -> Append:
    return Append(
        entries=make_entries(first, *bodies),
        progress=progress,
        rewrite=rewrite,
        step_finished=step_finished,
        consumed=consumed,
        unless_mail=unless_mail,
    )


def make_mail(mail_id: str = "mail-1", *, topic: str = "message", body: bytes = b"hello") -> Mail:
    return Mail(mail_id=mail_id, topic=topic, body=body)


async def create_claimed(store: RunStore, worker_id: str, run: NewRun | None = None) -> Claim:
    """Create a run that `worker_id` executes. Return the claim."""
    claim = await store.create(run or make_run(), worker_id=worker_id)
    assert claim is not None, "a run created for a worker is claimed by it"
    return claim


async def load_contents(store: RunStore, run_id: str = "run-1") -> tuple[RunRecord, list[Entry]]:
    """Return everything the store knows about a run, to compare before and after a call that changes nothing."""
    stored = await store.load(run_id)
    return stored.record, list(stored.entries)


async def load_record(store: RunStore, run_id: str = "run-1") -> RunRecord:
    return await get_record(store, run_id)


async def load_bodies(store: RunStore, run_id: str = "run-1") -> list[bytes]:
    return [entry.body for entry in (await store.load(run_id)).entries]


async def read_mail_ids(store: RunStore, run_id: str = "run-1") -> list[str]:
    """Return the ids of the unread mail, in order."""
    return [mail.mail_id for mail in (await store.load(run_id, after=END)).mail]


async def create_waiting(
    store: RunStore,
    worker_id: str,
    run: NewRun | None = None,
    *,
    wake_on: Sequence[str] = (),
    wake_at: datetime | None = None,
) -> Claim:
    """Create a run that waits. Return the claim under which it was released."""
    claim = await create_claimed(store, worker_id, run)
    await store.release(claim, Release(status=RunStatus.WAITING, wake_on=wake_on, wake_at=wake_at))
    return claim


async def list_run_ids(store: RunStore, filter: RunFilter | None = None) -> list[str]:
    """Return the ids of the listed runs, in order. Reads small pages, so that there are several."""
    return [record.run_id async for record in iter_runs(store, filter, page_size=7)]


def get_run_ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.run_id for claim in claims]
