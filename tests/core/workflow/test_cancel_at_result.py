"""A workflow that is cancelled just after a step was recorded undoes that step too."""

import asyncio
from typing import Any

import pytest
from tests.core.null_listener import NullListener

from holdfast import App, tool
from holdfast.core.errors import RunCancelled
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event, ToolReturned
from holdfast.workflows import Workflow, workflow

made: list[str] = []


async def give_back(call: Any, result: str) -> None:
    made.append(f"undone {call.arguments['number']}")


@tool(undo=give_back)
def pay_in_thread(number: int) -> str:
    made.append(f"paid {number}")
    return "receipt"


@tool(undo=give_back)
async def pay(number: int) -> str:
    made.append(f"paid {number}")
    return "receipt"


@workflow
async def buy() -> str:
    await pay(1)
    return await pay(2)


@workflow
async def buy_at_once() -> list[str]:
    return list(await asyncio.gather(pay(1)))


@workflow
def buy_plainly() -> Any:
    return pay_in_thread(1)


class Canceller(NullListener):
    """Cancels the run when a call has returned. The result is recorded by then, and not saved."""

    app: App

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, ToolReturned):
            await self.app.cancel(info.run_id)


@pytest.mark.parametrize("flow", [buy, buy_at_once, buy_plainly], ids=["async", "gather", "plain"])
async def test_a_cancel_that_follows_the_result_of_a_step_undoes_it(flow: Workflow[Any]) -> None:
    made.clear()
    canceller = Canceller()
    async with asyncio.timeout(60), App([flow], "memory:", listener=canceller) as app:
        canceller.app = app
        with pytest.raises(RunCancelled):
            await app.run(flow, run_id="r")
        assert made == ["paid 1", "undone 1"]


class CancellerAtTheEnd(NullListener):
    """Cancels the run when its function has returned, and the run has not ended."""

    app: App

    async def on_output(self, info: RunInfo, output: Any) -> None:
        await self.app.cancel(info.run_id)


@pytest.mark.parametrize("flow", [buy, buy_at_once, buy_plainly], ids=["async", "gather", "plain"])
async def test_a_cancel_that_comes_after_the_last_step_undoes_all_of_them(flow: Workflow[Any]) -> None:
    made.clear()
    canceller = CancellerAtTheEnd()
    async with asyncio.timeout(60), App([flow], "memory:", listener=canceller) as app:
        canceller.app = app
        with pytest.raises(RunCancelled):
            await app.run(flow, run_id="r")
        assert made in (["paid 1", "undone 1"], ["paid 1", "paid 2", "undone 2", "undone 1"])
