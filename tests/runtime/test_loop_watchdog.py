"""Code that blocks the event loop is reported, with its run and its place."""

import logging
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply, tool


class Reports(logging.Handler):
    """Keeps what the watchdog logs. A tool blocks the loop until it has."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.arrived.set()


@pytest.fixture
def reports() -> Any:
    handler, logger = Reports(), logging.getLogger("holdfast.loop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_an_async_tool_that_blocks_the_loop_is_named(reports: Reports) -> None:
    @tool
    async def fetch() -> str:
        return f"reported: {reports.arrived.wait(60)}"

    model = ScriptedModel(tool_reply(call("c", "fetch")), "done")
    async with App([Agent(name="a", model=model, tools=[fetch])], None) as app:
        await app.run("a", "go", run_id="r")
    assert reports.texts[0].startswith("run r: the tool fetch has blocked the event loop for ")
    assert f"{__file__}:{fetch.function.__code__.co_firstlineno + 2} (fetch)" in reports.texts[0]
    assert "plain `def`" in reports.texts[0]


async def test_a_model_that_blocks_the_loop_is_named(reports: Reports) -> None:
    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        return Reply(text=f"reported: {reports.arrived.wait(60)}")

    async with App([Agent(name="thinker", model=model)], None) as app:
        assert (await app.run("thinker", "go", run_id="r")).output == "reported: True"
    assert "run r: the model or other code of agent thinker has blocked the event loop" in reports.texts[0]
    assert "(model)" in reports.texts[0]


async def test_a_sync_tool_and_code_outside_of_runs_are_not_reported(reports: Reports) -> None:
    @tool
    def work() -> str:
        return f"reported: {reports.arrived.wait(2.5)}"

    model = ScriptedModel(tool_reply(call("c", "work")), "done")
    async with App([Agent(name="a", model=model, tools=[work])], None) as app:
        await app.run("a", "go")
        reports.arrived.wait(2.5)
    assert reports.texts == []


async def test_the_thread_ends_with_the_app() -> None:
    async with App([Agent(name="a", model=ScriptedModel("done"))], None):
        (watchdog,) = [thread for thread in threading.enumerate() if thread.name == "holdfast watchdog"]
    watchdog.join(60)
    assert not watchdog.is_alive()
