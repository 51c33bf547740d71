"""`through_waits`: `run`, `run_sync` and `result` return the result of a run that others have to answer first."""

import asyncio
from datetime import timedelta

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Approve, Result, RunWaiting, tool, wait_for


@tool(approval=True)
async def pay() -> str:
    return "paid"


def make_agent() -> Agent:
    """An agent whose run waits for a person first, and then for a signal."""
    calls = (tool_reply(call("1", "pay")), tool_reply(call("2", "wait_for", name="ready")), "done")
    return Agent(name="a", model=ScriptedModel(*calls), tools=[pay, wait_for])


async def until_pending(app: App) -> None:
    assert app.store is not None
    while not await app.pending():
        await app.store.wait_for_change(timedelta(seconds=0.05))


@pytest.mark.parametrize("takes_runs", [True, False])
async def test_run_waits_for_answers_from_another_process(durable_store_url: str, takes_runs: bool) -> None:
    agent = make_agent()
    async with App([agent], durable_store_url, worker=takes_runs) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        result = asyncio.create_task(app.run("a", "go", run_id="r", through_waits=True))
        async with App([agent], durable_store_url, worker=False) as other:
            await other.answer("r", "1", Approve())
            await other.signal("r", "ready")
            # It executes nothing itself.
            assert (await other.result("r", through_waits=True)).output == "done"
        assert (await result).output == "done"


async def test_a_new_run_is_followed_through_its_waits(durable_store_url: str) -> None:
    agent = make_agent()
    async with (
        App([agent], durable_store_url, worker=False) as app,
        App([agent], durable_store_url, worker=False) as other,
    ):
        result = asyncio.create_task(app.run("a", "go", run_id="r", through_waits=True))
        await until_pending(other)
        await other.answer("r", "1", Approve())
        await other.signal("r", "ready")
        assert (await result).output == "done"


async def test_run_sync_waits_too(durable_store_url: str) -> None:
    agent = make_agent()
    async with App([agent], durable_store_url, worker=False) as other:
        run: asyncio.Task[Result] = asyncio.create_task(
            asyncio.to_thread(App([agent], durable_store_url).run_sync, "a", "go", run_id="r", through_waits=True)
        )
        await until_pending(other)
        await other.answer("r", "1", Approve())
        await other.signal("r", "ready")
        assert (await run).output == "done"
