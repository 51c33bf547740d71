"""`App.watch`: status changes of many runs."""

import asyncio
from contextlib import aclosing

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, Reply
from holdfast.checkpoint.errors import StoreClosed
from holdfast.checkpoint.record import RunFilter
from holdfast.core.errors import DefinitionError
from holdfast.events import StatusChanged
from holdfast.runtime.streams.watch import StatusWatch
from holdfast.stores.memory import MemoryStore


async def test_a_new_run_under_the_id_of_a_removed_one_is_seen() -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        watch = StatusWatch(store, RunFilter())
        await app.submit("a", "go", run_id="r")
        queued = [StatusChanged(run_id="r", status="queued")]
        assert await watch.look() == queued
        assert await watch.look() == []
        await store.remove("r", erase=True)
        assert await watch.look() == []
        await app.submit("a", "go", run_id="r")
        assert await watch.look() == queued


async def test_each_change_of_status_is_seen(store_url: str) -> None:
    gate = asyncio.Event()

    async def model(messages: object, tools: object) -> Reply:
        await gate.wait()
        return Reply(text="done")

    broken = Agent(name="broken", model=ScriptedModel(ValueError("no")))
    async with App([Agent(name="a", model=model), broken], store_url) as app:
        before = await app.submit("a", "go")
        async with aclosing(app.watch(labels={})) as watched:
            first = [await anext(watched)]
            while first[-1].status != "running":
                first.append(await anext(watched))
            assert {event.run_id for event in first} == {before}
            failed = await app.submit("broken", "go", run_id="f1")
            gate.set()
            seen: dict[str, list[str]] = {}
            while {"done", "failed"} - {statuses[-1] for statuses in seen.values()}:
                event = await anext(watched)
                seen.setdefault(event.run_id, []).append(event.status)
            assert seen[before] == ["done"]
            assert seen[failed][-1] == "failed"
            quick = await app.run("a", "a run that begins and ends between two looks", run_id="q1")
            while (event := await anext(watched)).run_id != quick.run_id or event.status != "done":
                assert event.run_id == quick.run_id


async def test_only_the_wanted_changes_are_seen(store_url: str) -> None:
    agents = [Agent(name="a", model=ScriptedModel("done")), Agent(name="broken", model=ScriptedModel(ValueError("no")))]
    async with App(agents, store_url) as app, aclosing(app.watch(status="failed")) as failures:
        failure = asyncio.create_task(anext(failures))
        while not failure.done():  # the watch may begin to look after a run has failed
            await app.run("a", "go")
            with fails_with(ValueError, match="no"):
                await app.run("broken", "go")
        event = failure.result()
        assert event == StatusChanged(run_id=event.run_id, status="failed", reason="ValueError: no")
        assert (await app.get(event.run_id)).agent == "broken"


async def test_a_wrong_query_is_refused_and_closing_ends_the_watch() -> None:
    async with App([Agent(name="a", model=ScriptedModel("done"))], "memory:") as app:
        with pytest.raises(DefinitionError):
            await anext(app.watch(status="sleeping"))
        await app.submit("a", "go", run_id="r1")
        watched = app.watch()
        await anext(watched)
    with pytest.raises(StoreClosed):
        async for _ in watched:
            pass


async def test_runs_that_do_not_fit_are_not_seen() -> None:
    async with App([Agent(name=name, model=ScriptedModel("done")) for name in "ab"], "memory:") as app:
        watched = app.watch(agent="b")
        looking = asyncio.create_task(anext(watched))
        await app.run("a", "go", run_id="a1")
        await app.run("b", "go", run_id="b1")
        assert (await looking).run_id == "b1"
        await watched.aclose()
