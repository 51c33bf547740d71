"""A failed run raises the same class and the same text: at once, later, in `map`, and without a store."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import Agent, App, Reply, tool
from holdfast.core.agents.agent import Bounds
from holdfast.core.agents.tool import ToolSchema
from holdfast.core.run.messages import Message, ToolCall
from holdfast.errors import DefinitionError, RunConflict, RunFailed, StepsExceeded, ToolFailed

TEXT = "run r failed: ValueError: no such order"


async def broken(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    raise ValueError("no such order")


AGENT = Agent(name="broken", model=broken)


async def test_run_result_and_resume_raise_run_failed_the_first_and_the_second_time(tmp_path: Path) -> None:
    async with App([AGENT], f"sqlite:{tmp_path}/runs.db") as app:
        with pytest.raises(RunFailed) as first:
            await app.run("broken", "go", run_id="r")
        with pytest.raises(RunFailed) as second:
            await app.run("broken", "go", run_id="r")
        with pytest.raises(RunFailed) as third:
            await app.result("r")
        with pytest.raises(RunFailed) as resumed:
            await app.resume("r")
    for caught in (first, second, third, resumed):
        assert type(caught.value) is RunFailed
        assert (str(caught.value), caught.value.run_id) == (TEXT, "r")
        assert caught.value.error == "ValueError: no such order"
    assert isinstance(first.value.__cause__, ValueError)
    assert isinstance(resumed.value.__cause__, ValueError)
    assert second.value.__cause__ is None


@pytest.mark.parametrize("store", [True, False])
def test_run_sync_raises_run_failed_each_time_and_without_a_store_too(store: bool, tmp_path: Path) -> None:
    app = App([AGENT], f"sqlite:{tmp_path}/runs.db" if store else None)
    for number in range(2):
        with pytest.raises(RunFailed) as caught:
            app.run_sync("broken", "go", run_id="r")
        assert str(caught.value) == TEXT
        assert isinstance(caught.value.__cause__, ValueError) is (number == 0 or not store)


async def test_the_items_of_a_batch_have_run_failed_each_time(tmp_path: Path) -> None:
    async with App([AGENT], f"sqlite:{tmp_path}/runs.db") as app:
        for _ in range(2):
            [item] = [item async for item in app.map("broken", ["go"], id="b")]
            assert type(item.error) is RunFailed
            assert item.error.error == "ValueError: no such order"


async def test_a_bound_and_a_tool_that_end_a_run_are_the_cause() -> None:
    @tool(on_error="raise")
    async def explode() -> None:
        raise LookupError("gone")

    async def calls(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        return Reply(tool_calls=(ToolCall(id=f"c{len(messages)}", name=tools[0].name, arguments={}),))

    @tool(effect="pure")
    async def look() -> int:
        return 1

    agents = [
        Agent(name="explodes", model=calls, tools=[explode]),
        Agent(name="loops", model=calls, tools=[look], bounds=Bounds(max_steps=1)),
    ]
    async with App(agents, None) as app:
        with pytest.raises(RunFailed, match="LookupError: gone") as raised:
            await app.run("explodes", "go")
        assert isinstance(raised.value.__cause__, ToolFailed)
        assert isinstance(raised.value.__cause__.__cause__, LookupError)
        with pytest.raises(RunFailed, match="StepsExceeded: ") as bounded:
            await app.run("loops", "go")
        assert isinstance(bounded.value.__cause__, StepsExceeded)


async def test_a_mistake_of_the_caller_is_not_a_failed_run() -> None:
    async with App([AGENT], None) as app:
        with pytest.raises(DefinitionError, match="nope"):
            await app.run("nope", "go")


def test_an_error_of_run_sync_has_no_error_of_another_kind_as_its_context(tmp_path: Path) -> None:
    async def answer(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        return Reply(text="done")

    app = App([Agent(name="a", model=answer)], f"sqlite:{tmp_path / 'runs.db'}")
    app.run_sync("a", "one", run_id="r")
    with pytest.raises(RunConflict) as conflict:
        app.run_sync("a", "two", run_id="r")
    assert conflict.value.__context__ is None, "a traceback would show it first"
