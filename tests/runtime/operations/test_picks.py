"""Picks are runs of holdfast's own: people see them only where they ask for them."""

from datetime import UTC, datetime

from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, WorkerSettings
from holdfast.checkpoint.claims import WorkerIdentity, this_process
from holdfast.checkpoint.store import RunStore
from holdfast.runtime.operations.verdicts import PICK_AGENT, read_pick, record_pick
from holdfast.runtime.reading.fleet import read_activity
from holdfast.testing.store_processes.store_under_test import make_run
from holdfast.web.auth import Principal
from holdfast.web.ui.pages.fleet_page import read_fleet
from holdfast.web.ui.pages.run_listing import count_all

AGENT = Agent(name="a", model=ScriptedModel("one", "two", "three"))


async def add_pick(app: App, result: str) -> RunStore:
    store = app.store
    assert store is not None
    await record_pick(store, await store.get_record("r1"), result, by="ann")
    return store


async def test_listings_and_counts_leave_picks_out(store_url: str) -> None:
    async with App([AGENT], store_url, worker=WorkerSettings(take_runs=False)) as app:
        await app.run("a", "go", run_id="r1")
        await add_pick(app, "one")
        await app.run("a", "go", run_id="r2")
        await add_pick(app, "")
        store = await add_pick(app, "two")
        first = await app.list(limit=1)
        assert [run.run_id for run in first.runs] == ["r2"]
        second = await app.list(limit=1, cursor=first.cursor)
        assert [run.run_id for run in second.runs] == ["r1"]
        assert (await app.list(status="done", caller="ann")).runs == ()
        picks = (await app.list(agent=PICK_AGENT)).runs
        assert [run.prompt for run in picks] == ["Pick two of r1", "Pick none of r1", "Pick one of r1"]
        pick = await read_pick(store, "r1")
        assert pick is not None
        assert pick.result == "two"

        now = datetime.now(UTC)
        assert (await read_activity(store, now)).total == 2
        counted = await count_all(store, 10)
        assert counted is not None
        assert counted.format("done") == "2"
        fleet = await read_fleet(store, Principal(caller_id="ops", sees_all=True), now)
        assert sum(hour.created for hour in fleet.hours) == 2


async def test_a_pick_that_is_not_complete_is_listed(store_url: str) -> None:
    async with App([AGENT], store_url, worker=WorkerSettings(take_runs=False)) as app:
        assert app.store is not None
        worker = WorkerIdentity(worker_id="w1", process=this_process())
        await app.store.register_worker(worker)
        await app.store.create(make_run("pick-1", agent_name=PICK_AGENT), worker_id="w1")
        assert (await app.list()).runs == (), "it is being stored"
        await app.store.deregister_worker("w1")
        [run] = (await app.list()).runs
        assert (run.run_id, run.status) == ("pick-1", "interrupted")
        assert (await read_activity(app.store, datetime.now(UTC))).total == 1


async def test_a_watcher_of_all_runs_sees_no_picks(store_url: str) -> None:
    async with App([AGENT], store_url, worker=WorkerSettings(take_runs=False)) as app:
        await app.run("a", "go", run_id="r1")
        await app.submit("a", "go", run_id="before")
        watched = app.watch()
        assert (await anext(watched)).run_id == "before"
        await add_pick(app, "one")
        await app.run("a", "go", run_id="after")
        while (event := await anext(watched)).status != "done":
            assert event.run_id == "after"
        assert event.run_id == "after"
        await watched.aclose()
