"""Claims of one worker: a cancel, an error or a refusal leaves no run with an owner that does not execute it."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.probe_store import ProbeStore

from holdfast.checkpoint.claims import Claims, cancel_background, cancel_children, cancel_run, request_cancel
from holdfast.checkpoint.codec import Outcome, decode, encode, encode_begin
from holdfast.checkpoint.errors import (
    ClaimLost,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Mail, NewRun, Release, RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.checkpoint.workers import Claim, WorkerIdentity, this_process
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

DAY = timedelta(days=1)
WAITING, PARKED, INTERRUPTED = RunStatus.WAITING, RunStatus.PARKED, RunStatus.INTERRUPTED
CANCELLED, DONE, FAILED, QUEUED, RUNNING = (
    RunStatus.CANCELLED, RunStatus.DONE, RunStatus.FAILED, RunStatus.QUEUED, RunStatus.RUNNING
)  # fmt: skip


class Fleet:
    """A store with two registered workers, `w` and `other`, and the claims of the first."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.inner = MemoryStore(clock=self.clock)
        self.store = ProbeStore(self.inner)
        self.claims = Claims(self.store, CheckpointSettings(**settings), self.clock)

    async def open(self) -> "Fleet":
        await self.inner.open()
        await self.claims.register(())
        await self.inner.register_worker(WorkerIdentity(worker_id="other", process=this_process()))
        return self

    async def add(self, run_id: str, status: RunStatus = QUEUED, owner: str = "other", **fields: Any) -> Claim | None:
        """Add a run. One that is running is claimed by `owner`."""
        begin = {name: fields.pop(name) for name in ("undo_on_cancel", "own_usage") if name in fields}
        release = {name: fields.pop(name) for name in ("wake_at", "wake_on", "reason") if name in fields}
        info = RunInfo(run_id=run_id, agent_name="a", **fields)
        entries = [Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))]
        await self.inner.create(NewRun.create(info, encode(Progress(**begin)), entries))
        if status is QUEUED:
            return None
        claim = await self.inner.claim(run_id, owner)
        if status is not RUNNING:
            await self.inner.release(claim, Release(status=status, **release))
        return claim

    async def get(self, run_id: str) -> RunRecord:
        return await get_record(self.inner, run_id)

    async def get_statuses(self, *run_ids: str) -> list[str]:
        return [(await self.get(run_id)).status.value for run_id in run_ids]


# -- the worker -------------------------------------------------------------------------------------------------------


async def test_agents_are_announced_when_they_change_and_again_after_an_error() -> None:
    fleet = await Fleet().open()
    await fleet.claims.announce(())
    assert fleet.store.calls == ["register_worker"]
    fleet.store.fail("register_worker", StoreUnavailable("away"))
    await fleet.claims.announce(("a",))
    assert not fleet.claims.agents
    await fleet.claims.announce(("a",))
    assert list(fleet.claims.agents) == ["a"]
    [own] = [each for each in await fleet.inner.list_workers() if each.worker.worker_id == fleet.claims.worker_id]
    assert own.worker.agents == ("a",)
    await fleet.claims.announce(("a",))
    assert fleet.store.calls == ["register_worker"] * 2


async def test_an_announcement_outlives_its_caller() -> None:
    fleet = await Fleet().open()
    fleet.store.loop_turns = 5
    announcing = asyncio.create_task(fleet.claims.announce(("a",)))
    await asyncio.sleep(0)
    announcing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await announcing
    await fleet.claims.finish()
    assert fleet.claims.agents == ("a",)


async def test_work_that_was_started_is_waited_for_also_if_it_fails() -> None:
    fleet = await Fleet().open()
    ended: list[str] = []

    async def work(name: str, error: BaseException | None = None) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append(name)
        if error is not None:
            raise error

    fleet.claims.start(work("good"))
    fleet.claims.start(work("bad", ValueError("x")))
    fleet.claims.start(work("cancelled", asyncio.CancelledError()))
    await fleet.claims.finish()
    assert sorted(ended) == ["bad", "cancelled", "good"]
    await fleet.claims.deregister()
    assert [each.worker.worker_id for each in await fleet.inner.list_workers()] == ["other"]


async def test_a_use_within_a_block_ends_with_it() -> None:
    fleet = await Fleet().open()
    finishing: asyncio.Task[None]
    with fleet.claims.use():
        finishing = asyncio.create_task(fleet.claims.finish())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not finishing.done()
    await finishing


# -- claiming ---------------------------------------------------------------------------------------------------------


async def test_a_claim_that_is_granted_after_its_caller_left_is_undone() -> None:
    fleet = await Fleet().open()
    await fleet.add("r")
    fleet.store.loop_turns = 5
    claims = fleet.claims
    claiming = asyncio.create_task(claims.claim(fleet.store.claim("r", claims.worker_id), claims.restore))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await claims.finish()
    record = await fleet.get("r")
    assert (record.status, record.strikes, record.token) == (INTERRUPTED, 0, 1)


async def test_a_claim_that_is_refused_after_its_caller_left_needs_no_undo() -> None:
    fleet = await Fleet().open()
    await fleet.add("r", DONE)
    fleet.store.loop_turns = 5
    undone: list[Claim] = []

    async def undo(claim: Claim) -> None:
        undone.append(claim)

    claiming = asyncio.create_task(fleet.claims.claim(fleet.store.claim("r", fleet.claims.worker_id), undo))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await fleet.claims.finish()
    assert undone == []


async def test_a_run_of_one_status_is_claimed_and_given_back() -> None:
    fleet = await Fleet().open()
    await fleet.add("p", PARKED, reason="why")
    undo = Release(status=PARKED, reason="as before")
    with pytest.raises(RunNotClaimable):
        await fleet.claims.claim_with_status("p", WAITING, undo)
    claim = await fleet.claims.claim_with_status("p", PARKED, undo)
    assert claim.run_id == "p"
    await fleet.claims.release(claim, undo)
    fleet.store.loop_turns = 5
    claiming = asyncio.create_task(fleet.claims.claim_with_status("p", PARKED, undo))
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.wait([claiming])
    await fleet.claims.finish()
    record = await fleet.get("p")
    assert (record.status, record.reason) == (PARKED, "as before")


async def test_unused_claims_are_restored() -> None:
    fleet = await Fleet().open()
    claims = []
    for run_id in ("a", "b"):
        await fleet.add(run_id)
        claims.append(await fleet.inner.claim(run_id, fleet.claims.worker_id))
    await fleet.claims.restore_all(claims)
    records = [await fleet.get(run_id) for run_id in ("a", "b")]
    assert [(record.status, record.strikes) for record in records] == [(INTERRUPTED, 0)] * 2


# -- releasing --------------------------------------------------------------------------------------------------------


async def test_a_release_that_fails_is_retried_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    fleet = await Fleet().open()
    claim = await fleet.add("r", RUNNING, fleet.claims.worker_id)
    assert claim is not None
    fleet.store.fail("release", StoreFull("full"), StoreFull("full"), StoreFull("full"))
    with pytest.raises(StoreFull):
        await fleet.claims.release(claim, Release(status=PARKED))
    await fleet.claims.release_claim(claim, Release(status=PARKED))
    assert "run r: could not release its claim, will retry: full" in caplog.text
    await fleet.claims.retry_pending_releases()
    assert "could not release a claim, will retry: full" in caplog.text
    assert await fleet.get_statuses("r") == ["parked"], "the second release was retried"
    await fleet.claims.retry_pending_releases()
    calls = list(fleet.store.calls)
    await fleet.claims.retry_pending_releases()
    assert fleet.store.calls == calls, "the claim of the first one is lost: it is not retried any more"


async def test_a_release_of_a_lost_claim_is_neither_logged_nor_retried(caplog: pytest.LogCaptureFixture) -> None:
    fleet = await Fleet().open()
    claim = await fleet.add("r", RUNNING, fleet.claims.worker_id)
    assert claim is not None
    await fleet.inner.claim("r", "other", steal=True)
    with pytest.raises(ClaimLost):
        await fleet.claims.release(claim, Release(status=PARKED))
    await fleet.claims.release_claim(claim, Release(status=PARKED))
    fleet.store.fail("release", StoreClosed("closed"))
    await fleet.claims.release_claim(claim, Release(status=PARKED))
    assert caplog.text == ""
    await fleet.claims.retry_pending_releases()
    assert caplog.text == ""
    fleet.store.calls.clear()
    await fleet.claims.finish()
    assert fleet.store.calls == []


async def test_a_durable_release_is_repeated_while_the_store_is_unavailable() -> None:
    fleet = await Fleet().open()
    claim = await fleet.add("r", RUNNING, fleet.claims.worker_id)
    assert claim is not None
    fleet.store.fail("release", StoreUnavailable("away"), StoreUnavailable("away"))
    releasing = asyncio.create_task(fleet.claims.release_durably(claim, Release(status=PARKED)))
    await fleet.clock.advance(timedelta(seconds=1))
    await releasing
    assert await fleet.get_statuses("r") == ["parked"]
    fleet.store.calls.clear()
    await fleet.claims.finish()
    assert fleet.store.calls == []


async def test_a_run_whose_mail_has_come_is_left_to_any_worker() -> None:
    fleet = await Fleet().open()
    claim = await fleet.add("r", RUNNING, fleet.claims.worker_id)
    assert claim is not None
    await fleet.inner.post("r", Mail(mail_id="m", topic="message", body=b"{}"))
    waiting = Release(status=WAITING, reason="why", wake_at=fleet.clock.now() + DAY, wake_on=("message",))
    await fleet.claims.release(claim, waiting)
    record = await fleet.get("r")
    assert (record.status, record.wake_at, tuple(record.wake_on)) == (INTERRUPTED, None, ())


async def test_releases_are_retried_by_one_task_that_outlives_its_callers() -> None:
    fleet = await Fleet().open()
    going, tries = asyncio.Event(), 0

    async def retry() -> None:
        nonlocal tries
        tries += 1
        await going.wait()

    fleet.claims.add_pending_release(retry)
    callers = [asyncio.create_task(fleet.claims.retry_pending_releases()) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.wait([callers[0]])
    finishing = asyncio.create_task(fleet.claims.finish())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not finishing.done()
    going.set()
    await finishing
    await callers[1]
    assert tries == 1


async def test_a_release_that_fails_last_is_retried_when_the_worker_leaves() -> None:
    fleet = await Fleet().open()
    going, tried = asyncio.Event(), []

    async def slow() -> None:
        await going.wait()

    async def late() -> None:
        tried.append("late")

    fleet.claims.add_pending_release(slow)
    retrying = asyncio.create_task(fleet.claims.retry_pending_releases())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    fleet.claims.add_pending_release(late)
    finishing = asyncio.create_task(fleet.claims.finish())
    await asyncio.sleep(0)
    going.set()
    await finishing
    await retrying
    assert tried == ["late"]


async def test_parents_that_cannot_be_notified_are_left_to_the_janitor(caplog: pytest.LogCaptureFixture) -> None:
    fleet = await Fleet().open()
    await fleet.add("p", WAITING, wake_on=("child",))
    await fleet.add("c", parent_run_id="p")
    fleet.store.fail("post", StoreError("away"))
    await fleet.claims.wake_parents("c")
    assert "run c: the runs above it could not be notified, will retry: away" in caplog.text
    await fleet.claims.wake_parents("c")
    assert await fleet.get_statuses("p") == ["interrupted"]


# -- cancelling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [QUEUED, INTERRUPTED, WAITING, PARKED])
async def test_a_run_without_an_owner_is_cancelled_with_its_outcome(status: RunStatus) -> None:
    fleet = await Fleet().open()
    await fleet.add("r", status, own_usage=Usage(requests=3))
    await cancel_run(fleet.claims, "r")
    stored = await fleet.inner.load("r")
    text = "RunCancelled: run r was cancelled"
    assert (stored.record.status, stored.record.reason) == (CANCELLED, text)
    assert stored.record.expires_at is not None
    assert decode(stored.entries[-1].body, Outcome) == Outcome(error=text, usage=Usage(requests=3))
    await fleet.claims.finish()


@pytest.mark.parametrize("status", [DONE, FAILED, CANCELLED])
async def test_a_run_that_has_ended_is_not_cancelled(status: RunStatus) -> None:
    fleet = await Fleet().open()
    await fleet.add("r", status)
    with pytest.raises(RunNotClaimable):
        await cancel_run(fleet.claims, "r")
    with pytest.raises(RunNotFound):
        await cancel_run(fleet.claims, "none")


async def test_the_owner_of_a_run_is_asked_to_cancel_it() -> None:
    fleet = await Fleet().open()
    await fleet.add("r", RUNNING)
    await cancel_run(fleet.claims, "r")
    record = await fleet.get("r")
    assert (record.status, record.cancel_requested) == (RUNNING, True)


@pytest.mark.parametrize(("left", "status"), [(WAITING, CANCELLED), (DONE, None), (FAILED, None), (PARKED, CANCELLED)])
async def test_a_run_whose_owner_has_left_it_meanwhile(left: RunStatus, status: RunStatus | None) -> None:
    fleet = await Fleet().open()
    claim = await fleet.add("r", RUNNING)
    assert claim is not None

    async def leave(method: str) -> None:
        if method == "request_cancel":
            await fleet.inner.release(claim, Release(status=left))

    fleet.store.before = leave
    if status is None:
        with pytest.raises(RunNotClaimable):
            await request_cancel(fleet.claims, "r")
    else:
        await request_cancel(fleet.claims, "r")
        assert (await fleet.get("r")).status is status


@pytest.mark.parametrize("error", [StoreError("away"), asyncio.CancelledError()])
@pytest.mark.parametrize("status", [QUEUED, WAITING, PARKED])
async def test_a_cancel_that_fails_leaves_the_run_as_it_was(error: BaseException, status: RunStatus) -> None:
    fleet = await Fleet().open()
    at = fleet.clock.now() + DAY if status is WAITING else None
    await fleet.add("r", status, reason="why", wake_at=at, wake_on=("message",) if status is WAITING else ())
    before = await fleet.get("r")
    fleet.store.fail("load", error)
    with pytest.raises(type(error)):
        await cancel_run(fleet.claims, "r")
    await fleet.claims.finish()
    record = await fleet.get("r")
    assert record.status is (INTERRUPTED if status is QUEUED else status)
    if status is not QUEUED:
        assert (record.reason, record.wake_at) == (before.reason, before.wake_at)
        assert tuple(record.wake_on) == tuple(before.wake_on)


async def test_a_run_that_cannot_be_read_is_cancelled_without_an_outcome() -> None:
    fleet = await Fleet().open()
    info = RunInfo(run_id="r", agent_name="a")
    await fleet.inner.create(NewRun.create(info, b"{}", [Entry(seq=0, kind=EntryKind.EVENT, body=b"{}")]))
    await cancel_run(fleet.claims, "r")
    stored = await fleet.inner.load("r")
    assert stored.record.status is CANCELLED
    assert stored.record.reason.startswith("cancelled; run r is damaged")
    assert len(stored.entries) == 1


@pytest.mark.parametrize(("parent", "kept"), [(None, False), ("p", True)])
async def test_without_a_retention_a_cancelled_run_is_removed_unless_it_is_a_child(
    parent: str | None, kept: bool
) -> None:
    none = Retention(done=timedelta(0), failed=timedelta(0), cancelled=timedelta(0))
    fleet = await Fleet(retention=none).open()
    await fleet.add("p")
    await fleet.add("r", parent_run_id=parent)
    await cancel_run(fleet.claims, "r")
    if kept:
        assert await fleet.get_statuses("r") == ["cancelled"]
    else:
        with pytest.raises(RunNotFound):
            await fleet.get("r")
    undone = await Fleet(retention=none).open()
    await undone.add("r", undo_on_cancel=True)
    await cancel_run(undone.claims, "r")
    assert (await undone.get("r")).reason == "cancelled: a worker undoes its steps"


async def test_the_run_that_started_another_is_notified_of_its_cancel() -> None:
    fleet = await Fleet().open()
    await fleet.add("top", WAITING, wake_on=("child",))
    await fleet.add("p", WAITING, wake_on=("ended:r",), parent_run_id="top")
    await fleet.add("r", parent_run_id="p", background=True)
    await cancel_run(fleet.claims, "r")
    assert [mail.topic for mail in (await fleet.inner.load("p")).mail] == ["ended:r"]
    assert await fleet.get_statuses("p", "top") == ["interrupted", "interrupted"]


async def test_children_are_cancelled_with_their_parent() -> None:
    fleet = await Fleet().open()
    await fleet.add("p")
    await fleet.add("c", WAITING, parent_run_id="p")
    await fleet.add("ended", DONE, parent_run_id="p")
    await fleet.add("grandchild", parent_run_id="ended")
    await fleet.add("background", parent_run_id="p", background=True)
    await fleet.add("stranger")
    await cancel_run(fleet.claims, "p")
    assert await fleet.get_statuses("p", "c", "ended", "grandchild", "background", "stranger") == [
        "cancelled", "cancelled", "done", "cancelled", "cancelled", "queued",
    ]  # fmt: skip


async def test_a_run_that_continues_keeps_its_runs_in_the_background() -> None:
    fleet = await Fleet().open()
    await fleet.add("p", RUNNING)
    await fleet.add("c", parent_run_id="p")
    await fleet.add("background", parent_run_id="p", background=True)
    await cancel_children(fleet.claims, "p", continues=True)
    assert await fleet.get_statuses("c", "background") == ["cancelled", "queued"]
    assert not (await fleet.get("p")).cancel_requested
    await cancel_children(fleet.claims, "p")
    assert (await fleet.get("p")).cancel_requested
    alone = await Fleet().open()
    await alone.add("p", RUNNING)
    await cancel_children(alone.claims, "p")
    assert not (await alone.get("p")).cancel_requested, "it has no children"


async def test_a_run_that_ends_takes_its_runs_in_the_background_with_it() -> None:
    fleet = await Fleet().open()
    await fleet.add("p", RUNNING)
    await fleet.add("child", parent_run_id="p")
    await fleet.add("ended", DONE, parent_run_id="p", background=True)
    await fleet.add("background", parent_run_id="p", background=True)
    await cancel_background(fleet.claims, "p")
    assert await fleet.get_statuses("child", "ended", "background") == ["queued", "done", "cancelled"]


async def test_a_child_that_ends_meanwhile_is_not_an_error() -> None:
    for cancel in (cancel_children, cancel_background):
        fleet = await Fleet().open()
        await fleet.add("p", RUNNING)
        await fleet.add("c", parent_run_id="p", background=True)
        fleet.store.fail("claim", RunNotFound("c"))
        await cancel(fleet.claims, "p")
