"""Cancelling a run that no worker executes, and that has started child runs."""

from datetime import timedelta

import pytest
from tests.probe_store import ProbeStore
from tests.runtime.conftest import ProcessHarness, load_records
from tests.runtime.task_process import open_store
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, RunWaiting, ask_person, current_call, tool
from holdfast.checkpoint.errors import StoreFull
from holdfast.checkpoint.record import RunStatus
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore

#: What a store that takes nothing more does all the same.
_HARMLESS = {
    "open",
    "close",
    "register_worker",
    "deregister_worker",
    "pending",
    "wait_for_change",
    "purge",
}


async def killed_family(harness: ProcessHarness, app: App) -> None:
    """A run, its child and its grandchild, whose process was killed while the youngest waited at the gate."""
    await app.submit("errand", "delegate=delegate=gate note", run_id="r")
    process = harness.start("serve")
    harness.wait_for_calls("gate", 1)
    process.kill()
    process.wait()
    assert len(await load_records(app)) == 3
    harness.set_flag("open")


async def test_the_runs_that_it_has_started_are_cancelled_with_it(fleet_harness: ProcessHarness) -> None:
    async with fleet_harness.app() as app:
        await killed_family(fleet_harness, app)
        await app.cancel("r")
        assert [record.status for record in (await load_records(app)).values()] == [RunStatus.CANCELLED] * 3
        assert (await app.recover()).statuses == {}
    assert fleet_harness.list_calls() == ["gate"]


async def test_so_they_are_if_its_owner_died_before_it_heard_of_the_cancel(fleet_harness: ProcessHarness) -> None:
    async with fleet_harness.app() as app:
        await killed_family(fleet_harness, app)
        assert app.store is not None
        await app.store.request_cancel("r")
        await app.recover()
        assert [record.status for record in (await load_records(app)).values()] == [RunStatus.CANCELLED] * 3
        assert (await app.recover()).statuses == {}
    assert fleet_harness.list_calls() == ["gate"]


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("nth", range(14))
async def test_a_cancel_that_fails_half_way_leaves_no_child_that_continues_by_itself(
    harness: ProcessHarness, nth: int, for_good: bool
) -> None:
    async with harness.app() as app:
        await killed_family(harness, app)
    store = ProbeStore(store_from_url(harness.url))
    calls = 0

    async def refuse(method: str) -> None:
        nonlocal calls
        if method in _HARMLESS:
            return
        calls += 1
        if calls == nth + 1 or (for_good and calls > nth):
            raise StoreFull("no room")

    async with harness.app(store=store) as app:
        await app._working.janitor.tick()  # its first reads of the store are not to be refused
        store.before = refuse
        with pytest.raises(StoreFull):
            await app.cancel("r")
    await store.inner.close()
    async with harness.app(store=open_store(harness.url, timedelta(hours=1))) as app:  # the backoffs are over
        await app.recover()
        family = await load_records(app)
        if family["r"].status is RunStatus.DONE:
            assert [record.status for record in family.values()] == [RunStatus.DONE] * 3
            assert harness.list_calls() == ["gate", "gate", "note"]
        else:
            assert {record.status for record in family.values()} == {RunStatus.CANCELLED}
            assert harness.list_calls() == ["gate"]


async def test_a_run_that_waits_under_a_child_that_has_failed_is_cancelled_too() -> None:
    question = tool_reply(call("1", "ask_person", question="Which?"))
    grandchild = Agent(name="grandchild", model=ScriptedModel(question), tools=[ask_person])

    @tool(effect="idempotent")
    async def delegate(agent: str) -> str:
        return str((await current_call().run(app.agents[agent], "go")).output)

    @tool(effect="pure", on_error="raise")
    async def fail_when_asked() -> None:
        while not await app.pending():
            await store.wait_for_change(timedelta(seconds=1))
        raise ValueError("broken")

    calls = tool_reply(call("1", "delegate", agent="grandchild"), call("2", "fail_when_asked"))
    child = Agent(name="child", model=ScriptedModel(calls), tools=[delegate, fail_when_asked])
    model = ScriptedModel(tool_reply(call("1", "delegate", agent="child")), question)
    parent = Agent(name="parent", model=model, tools=[delegate, ask_person])
    store = MemoryStore()
    async with App([parent, child, grandchild], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("parent", "go", run_id="r")
        assert await _get_statuses(app) == {"parent": "waiting", "child": "failed", "grandchild": "waiting"}
        await app.cancel("r")
        assert await _get_statuses(app) == {"parent": "cancelled", "child": "failed", "grandchild": "cancelled"}


async def _get_statuses(app: App) -> dict[str, str]:
    return {run.agent: run.status.value for run in (await app.list()).runs}
