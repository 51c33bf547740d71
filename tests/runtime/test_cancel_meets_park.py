"""A cancel ends a run also if it was about to be parked, or is a child that was. One that comes too late is refused."""

from contextlib import suppress

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, RunWaiting, tool, wait_for
from holdfast.checkpoint.errors import RecordDecodeError, RunNotClaimable
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.checkpoint.workers import Claim
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.errors import RunCancelled, RunFailed, RunInterrupted, RunParked
from holdfast.stores.memory import MemoryStore
from holdfast.testing.store_processes.store_under_test import add_worker
from holdfast.workflows import workflow


def make_agent(store: RunStore, error: Exception, *, name: str = "agent") -> Agent:
    """Return an agent whose tool raises the error as soon as the cancel of its run is acknowledged."""

    @tool(effect="idempotent")
    async def stop() -> None:
        await store.request_cancel(current_call().run_id)
        raise error

    return Agent(name=name, model=ScriptedModel(tool_reply(call("c", "stop")), "never"), tools=[stop])


async def test_a_run_that_is_about_to_be_parked_is_cancelled() -> None:
    store = MemoryStore()
    agent = make_agent(store, RunParked("approval"))
    async with App([agent], store) as app:
        await app.submit(agent, "go", run_id="r")
        with pytest.raises(RunCancelled):
            await app.result("r")
        assert (await app.get("r")).status is RunStatus.CANCELLED


async def test_a_child_that_is_about_to_be_parked_is_cancelled_although_its_parent_is_parked() -> None:
    store = MemoryStore()
    child = make_agent(store, RunParked("approval"), name="child")

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "go")).output)

    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("c", "delegate")), "end"), tools=[delegate])
    async with App([parent, child], store, worker=False) as app:
        with pytest.raises(RunParked):
            await app.run(parent, "go", run_id="r")
        statuses = {run.agent: run.status for run in (await app.list()).runs}
        assert statuses == {"parent": RunStatus.PARKED, "child": RunStatus.CANCELLED}


async def test_a_cancelled_workflow_whose_undo_needs_a_person_is_parked_until_the_cancel_is_repeated() -> None:
    async def refuse(call: ToolContext, result: None) -> None:
        raise RunParked("approval")

    @tool(undo=refuse)
    async def reserve() -> None: ...

    @workflow
    async def flow() -> None:
        await reserve()
        await wait_for("go")

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(flow, run_id="r")
        await app.cancel("r")
        with pytest.raises(RunParked, match="approval"):
            await app.result("r")
        run = await app.get("r")
        assert (run.status, run.cancel_requested) == (RunStatus.PARKED, True)
        await app.cancel("r")
        with pytest.raises(RunCancelled):
            await app.result("r")


async def test_a_damaged_run_whose_cancel_was_requested_is_cancelled() -> None:
    probe = ProbeStore(MemoryStore())
    agent = make_agent(probe.inner, RunInterrupted("later"))
    async with App([agent], probe, worker=False) as app:
        await app.submit(agent, "go", run_id="r")
        claim = await probe.inner.claim("r", await add_worker(probe.inner))
        await probe.inner.request_cancel("r")
        await probe.inner.release(claim, Release(status=RunStatus.INTERRUPTED))
        probe.fail("load", RecordDecodeError("of another type"))
        await app.recover()
        record = await get_record(probe, "r")
        assert (record.status, record.reason) == (RunStatus.CANCELLED, "cancelled; of another type")


class CancelledTooLate(MemoryStore):
    """A caller cancels each run when its end is in the store, and its process does not know that yet."""

    app: App
    refusal: RunNotClaimable | None = None

    async def release(self, claim: Claim, release: Release) -> None:
        await super().release(claim, release)
        if release.status in (RunStatus.DONE, RunStatus.FAILED):
            with pytest.raises(RunNotClaimable) as caught:
                await self.app.cancel(claim.run_id)
            self.refusal = caught.value


@pytest.mark.parametrize("status", ["done", "failed"])
async def test_a_cancel_of_a_run_that_has_just_ended_is_not_acknowledged(status: str) -> None:
    store = CancelledTooLate()
    agent = Agent(name="agent", model=ScriptedModel("end" if status == "done" else ValueError("of the model")))
    async with App([agent], store) as app:
        store.app = app
        await app.submit(agent, "go", run_id="r")
        with suppress(RunFailed):
            assert (await app.result("r")).output == "end"
        assert (await app.get("r")).status == status
    assert store.refusal is not None
    assert store.refusal.status == status
