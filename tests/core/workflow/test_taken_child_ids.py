"""A run that another caller has put under the id of a future child is never taken for that child."""

import asyncio
from pathlib import Path

import pytest

from holdfast import App
from holdfast.errors import RunParked
from holdfast.events import ChildStarted
from holdfast.workflows import Workflow, run_agent, start, workflow


@workflow
async def decide(question: str) -> str:
    return "no"


@workflow
async def forge(text: str) -> str:
    return text


@workflow
async def order_child(item: str) -> str:
    return str(await run_agent(decide, item))


@workflow
async def order_started(item: str) -> str:
    return await (await start(decide, item)).result()


@workflow
async def order_detached(item: str) -> str:
    await start(decide, item, detached=True)
    return "started"


async def find_child_id(order: Workflow[str]) -> str:
    """Return the id that the child of the run `order-7` will have."""
    async with App([order, decide], "memory:") as app:
        await app.run(order, "tea", run_id="order-7")
        found = [event.child_run_id async for event in app.events("order-7") if isinstance(event, ChildStarted)]
    [child_id] = found
    return child_id


@pytest.mark.parametrize("order", [order_child, order_started, order_detached], ids=["child", "started", "detached"])
@pytest.mark.parametrize("url", ["memory:", "sqlite:runs.db"])
async def test_a_run_under_the_id_of_a_child_is_no_child(
    url: str, order: Workflow[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    child_id = await find_child_id(order)
    async with asyncio.timeout(60), App([order, decide, forge], url) as app:
        await app.run(forge, "yes", run_id=child_id, caller_id="mallory")
        with pytest.raises(RunParked, match="taken id"):
            await app.run(order, "tea", run_id="order-7", caller_id="bob")
        await app.open_store.remove(child_id)
        await app.unpark("order-7")
        assert (await app.result("order-7")).output == ("started" if order is order_detached else "no")
