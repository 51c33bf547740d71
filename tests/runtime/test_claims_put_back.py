"""A claim that this process does not use is released, and leaves the run as it was."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, CheckpointSettings, Retention, tool
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Release, RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.checkpoint.workers import Claim
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

HOUR = timedelta(hours=1)


class SlowToAnswer(ProbeStore):
    """Grants a claim at once, and says so only when it is allowed to."""

    def __init__(self, inner: MemoryStore | None = None) -> None:
        super().__init__(inner or MemoryStore())
        self.granted, self.may_answer = asyncio.Event(), asyncio.Event()

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        claim = await super().claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)
        await self._answer()
        return claim

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        claims = await super().claim_next(worker_id, agents=agents, limit=limit)
        if claims:
            await self._answer()
        return claims

    async def _answer(self) -> None:
        self.granted.set()
        await self.may_answer.wait()

    async def wait_until_released(self) -> RunRecord:
        async with asyncio.timeout(30):
            while (record := await get_record(self.inner, "r")).status is RunStatus.RUNNING:
                await self.inner.wait_for_change(timedelta(seconds=1))
        return record


_ACTIONS: dict[str, tuple[RunStatus, Callable[[App], Awaitable[object]]]] = {
    "resume": (RunStatus.INTERRUPTED, lambda app: app.resume("r")),
    "resume a parked one": (RunStatus.PARKED, lambda app: app.resume("r")),
    "resume a failed one": (RunStatus.FAILED, lambda app: app.resume("r")),
    "run": (RunStatus.INTERRUPTED, lambda app: app.run("agent", "go", run_id="r")),
    "recover": (RunStatus.INTERRUPTED, lambda app: app.recover()),
    "cancel": (RunStatus.INTERRUPTED, lambda app: app.cancel("r")),
    "cancel a parked one": (RunStatus.PARKED, lambda app: app.cancel("r")),
    "unpark": (RunStatus.PARKED, lambda app: app.unpark("r")),
}


@pytest.mark.parametrize("action", _ACTIONS)
async def test_a_cancelled_caller_keeps_no_claim_that_is_granted_later(action: str) -> None:
    status, act = _ACTIONS[action]
    store = SlowToAnswer()
    async with App([Agent(name="agent", model=ScriptedModel("done"))], store, worker=False) as app:
        await app.submit("agent", "go", run_id="r")
        claim = await store.inner.claim("r", "earlier")
        await store.inner.release(claim, Release(status=status, reason="as it was"))
        caller = asyncio.ensure_future(act(app))
        await store.granted.wait()
        assert (await get_record(store.inner, "r")).status is RunStatus.RUNNING
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        store.may_answer.set()
        left = await store.wait_until_released()
        assert (left.status, left.strikes) == (status, 0)


async def test_a_cancelled_caller_keeps_no_claim_while_an_older_execution_of_the_run_ends() -> None:
    started, stopping, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await may_end.wait()

    agent = Agent(name="agent", model=ScriptedModel(tool_reply(call("1", "work")), "done"), tools=[work])
    store = SlowToAnswer()
    store.may_answer.set()
    async with App([agent], store, worker=False) as app:
        older = asyncio.create_task(app.run("agent", "go", run_id="r"))
        await started.wait()
        # Another worker takes the run and leaves it: this process does not know yet that it has lost it.
        claim = await store.inner.claim("r", "another", steal=True)
        await store.inner.release(claim, Release(status=RunStatus.INTERRUPTED))
        caller = asyncio.create_task(app.resume("r"))
        await stopping.wait()
        assert (await get_record(store.inner, "r")).status is RunStatus.RUNNING
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert (await get_record(store.inner, "r")).status is RunStatus.INTERRUPTED
        may_end.set()
        assert (await older).output == "done"


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.CANCELLED])
@pytest.mark.parametrize("cancelled", [False, True], ids=["fails", "is cancelled"])
async def test_a_resume_that_does_not_come_about_does_not_change_when_the_run_expires(
    status: RunStatus, cancelled: bool
) -> None:
    clock = ManualClock()
    store = SlowToAnswer(MemoryStore(clock=clock))
    settings = CheckpointSettings(retention=Retention(failed=9 * HOUR, cancelled=9 * HOUR))
    agent = Agent(name="agent", model=ScriptedModel("done"))
    async with App([agent], store, worker=False, clock=clock, checkpoint=settings) as app:
        await app.submit("agent", "go", run_id="r")
        claim = await store.inner.claim("r", "earlier")
        await store.inner.release(claim, Release(status=status, reason="as it was", retention=5 * HOUR))
        before = await get_record(store.inner, "r")
        await clock.advance(timedelta(seconds=5))
        if not cancelled:
            store.may_answer.set()
            store.fail("load", StoreUnavailable("the connection was lost"))
        caller = asyncio.ensure_future(app.resume("r"))
        await store.granted.wait()
        if cancelled:
            caller.cancel()
        store.may_answer.set()
        with pytest.raises((StoreUnavailable, asyncio.CancelledError)):
            await caller
        left = await store.wait_until_released()
        assert (left.status, left.reason, left.expires_at) == (status, "as it was", before.expires_at)
