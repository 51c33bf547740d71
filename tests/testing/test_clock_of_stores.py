"""A `ManualClock` of an App is the clock of the store that the App makes of a URL."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, App, Reply, ToolCall
from holdfast.core.agents.waiting_tools import sleep
from holdfast.testing import ManualClock


async def model(messages: Any, tools: Any) -> Reply:
    slept = any(isinstance(message, Reply) for message in messages)
    call = ToolCall(id="s", name="sleep", arguments={"seconds": 3 * 86_400})
    return Reply(text="awake", tool_calls=() if slept else [call])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_run_that_sleeps_for_days_is_awake_after_a_jump(kind: str, tmp_path: Path) -> None:
    url = "memory:" if kind == "memory" else f"sqlite:{tmp_path / 'runs.db'}"
    clock = ManualClock()
    async with App([Agent(name="a", model=model, tools=[sleep])], url, clock=clock) as app:
        begun = clock.now()
        await app.submit("a", "go", run_id="r")
        await until(app, "waiting")
        assert (await app.get("r")).created_at == begun
        await clock.jump(timedelta(days=4))
        await until(app, "done")


async def until(app: App, status: str) -> None:
    """Wait in real time: the store works in threads."""
    async with asyncio.timeout(60):
        while (await app.get("r")).status != status:  # noqa: ASYNC110 - nothing else says so in real time
            await asyncio.sleep(0.01)


async def test_a_jump_fires_each_timer_once_in_order_and_loops_once() -> None:
    clock, fired, looks = ManualClock(), list[str](), list[int]()

    async def look() -> None:
        while True:
            await clock.sleep(timedelta(seconds=1))
            looks.append(1)

    task = asyncio.create_task(look())
    clock.call_later(timedelta(hours=2), lambda: fired.append("late"))
    clock.call_later(timedelta(hours=1), lambda: fired.append("early"))
    clock.call_later(timedelta(days=9), lambda: fired.append("never"))
    await clock.jump(timedelta(days=3))
    assert (fired, looks) == (["early", "late"], [1])
    task.cancel()
