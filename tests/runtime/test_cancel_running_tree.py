"""Cancelling a run that a worker executes, while no worker executes its child runs."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

import pytest
from tests.probe_store import ProbeStore
from tests.runtime.conftest import ProcessHarness, load_records
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, current_call, tool
from holdfast.checkpoint.errors import RunNotClaimable, StoreFull
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import RunCancelled, RunParked
from holdfast.runtime.operations.run_client import RunClient
from holdfast.stores.from_url import store_from_url
from holdfast.workflows import workflow

#: What a store that refuses something does all the same.
_HARMLESS = {
    "open",
    "close",
    "register_worker",
    "deregister_worker",
    "pending",
    "wait_for_change",
    "purge",
}


class Family:
    """A run that starts one, which starts two: one that waits for a person, and one that waits indefinitely."""

    def __init__(self) -> None:
        self.begun, self.may_start, self.waits = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @tool(effect="idempotent")
        async def approve() -> None:
            await self.waits.wait()
            raise RunParked("approval")

        @tool(effect="idempotent")
        async def wait() -> None:
            self.waits.set()
            await asyncio.Event().wait()

        asking = Agent(name="asking", model=ScriptedModel(tool_reply(call("1", "approve"))), tools=[approve])
        waiting = Agent(name="waiting", model=ScriptedModel(tool_reply(call("1", "wait"))), tools=[wait])

        @tool(effect="idempotent")
        async def both() -> None:
            await asyncio.gather(*(current_call().run(agent, "go", key=agent.name) for agent in (asking, waiting)))

        middle = Agent(name="middle", model=ScriptedModel(tool_reply(call("1", "both"))), tools=[both])

        @tool(effect="idempotent")
        async def delegate() -> None:
            self.begun.set()
            await self.may_start.wait()
            await current_call().run(middle, "go")

        self.agents = [Agent(name="top", model=ScriptedModel(tool_reply(call("1", "delegate"))), tools=[delegate])]
        self.agents += [middle, asking, waiting]


async def left_family(url: str) -> None:
    """A family that no worker executes, and that recovery resumes."""
    family = Family()
    family.may_start.set()
    async with App(family.agents, url, worker=False) as app:
        await app.submit("top", "go", run_id="r")
        await app.recover()
        assert [record.status for record in (await load_records(app)).values()].count(RunStatus.PARKED) == 3
        await app.unpark("r")


async def all_are_cancelled(app: App) -> bool:
    assert (await app.recover()).statuses == {}
    return [record.status for record in (await load_records(app)).values()] == [RunStatus.CANCELLED] * 4


@pytest.mark.parametrize("by", ["this process", "another"])
async def test_runs_that_a_resumed_run_has_not_met_again_end_with_it(fleet_harness: ProcessHarness, by: str) -> None:
    await left_family(fleet_harness.url)
    family = Family()
    async with App(family.agents, fleet_harness.url, worker=False) as app:
        recovery = asyncio.create_task(app.recover())
        await family.begun.wait()
        assert app.store is not None
        await (app.cancel("r") if by == "this process" else app.store.request_cancel("r"))
        await recovery
        assert await all_are_cancelled(app)


async def test_so_do_runs_that_were_just_being_left(harness: ProcessHarness) -> None:
    family, store = Family(), ProbeStore(store_from_url(harness.url))
    family.may_start.set()
    leaving, go_on = asyncio.Event(), asyncio.Event()
    ends = 0

    async def second_end(method: str) -> None:
        nonlocal ends
        ends += method == "release"
        if method == "release" and ends == 2:
            leaving.set()
            await go_on.wait()

    async with App(family.agents, store, worker=False) as app:
        await app.submit("top", "go", run_id="r")
        store.before = second_end
        recovery = asyncio.create_task(app.recover())
        await leaving.wait()
        await app.cancel("r")
        go_on.set()
        await recovery
        assert await all_are_cancelled(app)
    await store.inner.close()


@pytest.mark.parametrize("nth", range(12))
async def test_so_they_do_if_the_store_refuses_something_meanwhile(harness: ProcessHarness, nth: int) -> None:
    await left_family(harness.url)
    family, store = Family(), ProbeStore(store_from_url(harness.url))
    calls = 0

    async def refuse(method: str) -> None:
        nonlocal calls
        calls += method not in _HARMLESS
        if method not in _HARMLESS and calls == nth + 1:
            raise StoreFull("no room")

    async with App(family.agents, store, worker=False) as app:
        recovery = asyncio.create_task(app.recover())
        await family.begun.wait()
        store.before = refuse
        with suppress(StoreFull):  # the request itself was refused: the run is stopped all the same
            await app.cancel("r")
        await recovery
    await store.inner.close()
    assert calls > nth
    async with App(family.agents, harness.url, worker=False) as app:
        assert await all_are_cancelled(app)


async def test_a_cancel_that_meets_the_release_of_a_run_that_waits_is_applied(harness: ProcessHarness) -> None:
    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    agent = Agent(name="payer", model=ScriptedModel(tool_reply(call("1", "pay"))), tools=[pay])
    store, leaving, go_on = ProbeStore(store_from_url(harness.url)), asyncio.Event(), asyncio.Event()

    async def hold_release(method: str) -> None:
        if method == "release":
            leaving.set()
            await go_on.wait()

    async with App([agent], store) as app:
        store.before = hold_release
        run = asyncio.create_task(app.run("payer", "go", run_id="r"))
        await leaving.wait()
        await app.cancel("r")
        go_on.set()
        await asyncio.wait([run])
        with pytest.raises(RunCancelled):
            await app.result("r", through_waits=True)
    await store.inner.close()


@pytest.mark.parametrize("by", ["this process", "another"])
async def test_a_cancel_that_meets_the_end_of_a_run_is_applied(fleet_harness: ProcessHarness, by: str) -> None:
    undone: list[str] = []

    async def release_seat(call: ToolContext, ticket: str) -> None:
        undone.append(ticket)

    @tool(undo=release_seat)
    async def reserve_seat() -> str:
        return "4a"

    @workflow
    async def travel() -> str:
        return await reserve_seat()

    store, ending, go_on = ProbeStore(store_from_url(fleet_harness.url)), asyncio.Event(), asyncio.Event()

    async def hold_release(method: str) -> None:
        if method == "release":
            ending.set()
            await go_on.wait()

    async with App([travel], store) as app, RunClient.open(fleet_harness.url) as other:
        store.before = hold_release
        run = asyncio.create_task(app.run(travel, run_id="r"))
        await ending.wait()
        await (app if by == "this process" else other).cancel("r")
        go_on.set()
        with pytest.raises(RunCancelled):
            await run
        assert undone == ["4a"]
        with pytest.raises(RunNotClaimable):
            await other.cancel("r")
    await store.inner.close()


async def test_a_cancel_of_a_run_of_this_process_is_durable_when_it_returns(harness: ProcessHarness) -> None:
    family, store = Family(), ProbeStore(store_from_url(harness.url))
    async with App(family.agents, store, worker=False) as app:
        run = asyncio.create_task(app.run("top", "go", run_id="r"))
        await family.begun.wait()
        await app.cancel("r")
        assert "request_cancel" in store.calls
        await asyncio.wait([run])
    await store.inner.close()


class SlowUndoStore(ProbeStore):
    """Lets a claim that is given back wait until another call has tried to claim."""

    def __init__(self, inner: RunStore) -> None:
        super().__init__(inner)
        self.claimed = asyncio.Event()

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        try:
            return await super().claim(run_id, worker_id, statuses=statuses, steal=steal, within_limits=within_limits)
        finally:
            self.claimed.set()

    async def release(self, claim: Claim, release: Release) -> None:
        if release.status is RunStatus.INTERRUPTED:
            await self.claimed.wait()
        await super().release(claim, release)


async def test_so_they_do_if_the_app_closes_while_a_refused_cancel_is_tried_again(harness: ProcessHarness) -> None:
    await left_family(harness.url)
    family, store = Family(), SlowUndoStore(store_from_url(harness.url))
    half_way, go_on = asyncio.Event(), asyncio.Event()

    async def stop_half_way(method: str) -> None:
        if method == "load":
            half_way.set()
            await go_on.wait()

    async with App(family.agents, store, worker=False) as app:
        while "purge" not in store.calls:  # noqa: ASYNC110  the janitor is quiet after its first round
            await asyncio.sleep(0.01)
        recovery = asyncio.create_task(app.recover())
        await family.begun.wait()
        store.fail("claim", StoreFull("no room"))
        await app.cancel("r")
        await recovery
        store.before = stop_half_way
        retry = asyncio.create_task(app._stored.checkpoints.claims.retry_pending_releases())  # as the janitor does
        await half_way.wait()
        store.claimed.clear()
        retry.cancel()  # as closing the janitor does
        go_on.set()
    await store.inner.close()
    async with App(family.agents, harness.url, worker=False) as app:
        assert await all_are_cancelled(app)


async def test_a_run_that_has_started_none_is_cancelled_after_one_look_for_them(harness: ProcessHarness) -> None:
    family, store = Family(), ProbeStore(store_from_url(harness.url))
    async with App(family.agents, store, worker=False) as app:
        run = asyncio.create_task(app.run("top", "go", on_cancel="cancel"))
        await family.begun.wait()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        assert store.calls[: store.calls.index("release")].count("list_page") == 1
        assert "request_cancel" not in store.calls
        assert [record.status for record in (await load_records(app)).values()] == [RunStatus.CANCELLED]
    await store.inner.close()
