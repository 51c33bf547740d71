"""After a short failure of the store no worker keeps a run that it does not execute."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.errors import CheckpointError, StoreFull, StoreUnavailable
from holdfast.checkpoint.record import Release, RunRecord, RunStatus
from holdfast.core.errors import SaveFailed
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class FlakyStore(ProbeStore):
    """Does not answer the next calls of some methods: as often as `down` says."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), before=self._refuse)
        self.down: dict[str, int] = {}
        self.refused = asyncio.Event()

    async def _refuse(self, method: str) -> None:
        if self.down.get(method, 0) > 0:
            self.down[method] -= 1
            if not any(self.down.values()):
                self.refused.set()
            raise StoreUnavailable(f"{method}: the connection was lost")

    async def record(self) -> RunRecord:
        return (await self.inner.load("run")).record

    async def park(self, worker_id: str) -> None:
        claim = await self.inner.claim("run", worker_id)
        await self.inner.release(claim, Release(status=RunStatus.PARKED, reason="approval"))


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
async def app(store: FlakyStore) -> AsyncIterator[App]:
    """With a queued run."""
    async with App([Agent(name="agent", model=ScriptedModel("ok"))], store, worker=False) as app:
        await app.submit("agent", "go", run_id="run")
        yield app


async def test_a_run_that_recovery_can_neither_load_nor_set_aside_is_set_aside_later(
    app: App, store: FlakyStore
) -> None:
    store.down = {"load": 1, "release": 1}
    await app.recover()
    await app._stored.checkpoints.claims.retry_pending_releases()
    left = await store.record()
    assert (left.status, left.strikes) == (RunStatus.INTERRUPTED, 0)
    assert (await app.run("agent", "go", run_id="run")).output == "ok"


async def test_an_unparked_run_continues_although_the_store_did_not_release_it_at_once(
    app: App, store: FlakyStore
) -> None:
    await store.park(app._stored.checkpoints.worker_id)
    store.down = {"release": 1}
    await app.unpark("run")
    await app._stored.checkpoints.claims.retry_pending_releases()
    await app.recover()
    assert (await app.result("run")).output == "ok"


@pytest.mark.parametrize(
    ("act", "was"),
    [(lambda app: app.cancel("run"), RunStatus.INTERRUPTED), (lambda app: app.unpark("run"), RunStatus.PARKED)],
    ids=["cancel", "unpark"],
)
async def test_what_cannot_be_done_and_not_be_undone_is_undone_later(
    app: App, store: FlakyStore, act: Callable[[App], Awaitable[None]], was: RunStatus
) -> None:
    if was is RunStatus.PARKED:
        await store.park(app._stored.checkpoints.worker_id)
    await app._working.janitor.tick()  # its first reads of the store are not to be refused
    store.down = {"list_page": 1, "release": 1}
    with pytest.raises(CheckpointError, match="list_page: the connection was lost"):
        await act(app)
    await app._stored.checkpoints.claims.retry_pending_releases()
    left = await store.record()
    assert (left.status, left.strikes) == (was, 0)


async def test_a_cancel_whose_caller_is_cancelled_while_the_store_is_away_comes_into_force(
    app: App, store: FlakyStore
) -> None:
    store.down = {"release": 1}
    cancelling = asyncio.create_task(app.cancel("run"))
    await store.refused.wait()
    cancelling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelling
    await app._stored.checkpoints.claims.retry_pending_releases()
    assert (await store.record()).status is RunStatus.CANCELLED


async def test_a_claim_that_comes_too_late_and_cannot_be_given_back_is_given_back_later(
    app: App, store: FlakyStore
) -> None:
    reached, refuse = asyncio.Event(), store.before
    assert refuse is not None

    async def slowly(method: str) -> None:
        if method == "claim":
            reached.set()
            await asyncio.sleep(0)
        await refuse(method)

    store.before = slowly
    store.down = {"release": 1}
    cancelling = asyncio.create_task(app.cancel("run"))
    await reached.wait()
    cancelling.cancel()
    await store.refused.wait()
    await asyncio.gather(cancelling, return_exceptions=True)
    await app._stored.checkpoints.claims.retry_pending_releases()
    assert (await store.record()).status is RunStatus.INTERRUPTED


@pytest.mark.parametrize(
    "act", [lambda app: app.cancel("run"), lambda app: app.unpark("run")], ids=["cancel", "unpark"]
)
async def test_a_store_that_does_not_answer_delays_no_caller_that_is_cancelled(
    app: App, store: FlakyStore, act: Callable[[App], Awaitable[None]]
) -> None:
    await store.park(app._stored.checkpoints.worker_id)
    silent, answer = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method in ("list_page", "release"):
            silent.set()
            await answer.wait()

    store.before = hold
    acting = asyncio.ensure_future(act(app))
    await silent.wait()
    acting.cancel()
    done, _ = await asyncio.wait([acting], timeout=60)
    assert done
    answer.set()
    async with asyncio.timeout(60):
        while (await store.record()).status is not RunStatus.PARKED:
            await store.inner.wait_for_change(timedelta(seconds=1))


async def test_the_end_of_a_run_that_the_store_refused_is_recorded_later_by_the_same_process() -> None:
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([Agent(name="agent", model=ScriptedModel("ok"))], store, worker=False, clock=clock) as app:
        store.fail("release", StoreFull("no room"))
        with pytest.raises(SaveFailed, match="has a result that could not be saved"):
            await app.run("agent", "go", run_id="run")
        assert (await app.get("run")).status is RunStatus.RUNNING
        await clock.advance(timedelta(minutes=1))
        assert (await app.get("run")).status is RunStatus.DONE
        assert (await app.run("agent", "go", run_id="run")).output == "ok"


async def test_what_is_not_given_back_is_given_back_at_the_latest_when_the_app_closes(store: FlakyStore) -> None:
    async with App([Agent(name="agent", model=ScriptedModel("ok"))], store, worker=False) as app:
        await app.submit("agent", "go", run_id="run")
        await store.park(app._stored.checkpoints.worker_id)
        store.down = {"list_page": 1, "release": 1}
        with pytest.raises(CheckpointError):
            await app.unpark("run")
        assert (await store.record()).status is RunStatus.RUNNING
        at_deregistration: list[RunStatus] = []

        async def note(method: str) -> None:
            if method == "deregister_worker":
                at_deregistration.append((await store.record()).status)

        store.before = note
    # Before the worker is deregistered: from then on other workers may take what it has claimed.
    assert at_deregistration == [RunStatus.PARKED]


async def test_a_waiting_run_whose_cancel_failed_is_resumed_if_its_mail_came_meanwhile(
    app: App, store: FlakyStore
) -> None:
    claim = await store.inner.claim("run", app._stored.checkpoints.worker_id)
    await store.inner.release(claim, Release(status=RunStatus.WAITING, wake_on=("signal:go",)))
    await app._working.janitor.tick()  # its first reads of the store are not to be refused
    store.down = {"list_page": 1, "release": 1}
    with pytest.raises(CheckpointError, match="list_page: the connection was lost"):
        await app.cancel("run")
    await app.signal("run", "go")
    await app._stored.checkpoints.claims.retry_pending_releases()
    assert (await store.record()).status is RunStatus.INTERRUPTED
