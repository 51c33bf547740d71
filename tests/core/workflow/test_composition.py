"""Workflows with other parts: as a tool of an agent, with agents as steps, over many items, by name."""

import asyncio
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, ToolResult, tool
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import StepFailed, map_items, run_agent, workflow


@tool(effect="idempotent")
async def double(number: int) -> int:
    return 2 * number


@workflow
async def add(left: int, right: int = 1) -> int:
    """Add two numbers."""
    return int(await double(left)) + right


async def test_an_agent_calls_a_workflow_as_a_tool() -> None:
    model = ScriptedModel(tool_reply(call("1", "add", left=3, right=4)), "ten")
    agent = Agent(name="adder", model=model, tools=[add])
    assert agent.tools[0].schema.description == "Add two numbers."  # type: ignore[union-attr]
    async with App([agent, add], MemoryStore()) as app:
        result = await app.run(agent, "add", run_id="r")
        assert result.output == "ten"
        [answer] = [message.content for message in result.messages if isinstance(message, ToolResult)]
        assert answer == 10
        [child] = (await app.list(parent="r")).runs
        assert child.agent == "add"


async def test_a_workflow_runs_agents_and_workflows_as_children() -> None:
    agent = Agent(name="poet", model=ScriptedModel("a poem"))

    @workflow
    async def flow() -> list[Any]:
        return [await run_agent(agent, "write"), await run_agent(add, inputs={"left": 1})]

    async with App([flow, agent, add], MemoryStore()) as app:
        assert (await app.run(flow, run_id="r")).output == ["a poem", 3]
        assert {child.agent for child in (await app.list(parent="r")).runs} == {"poet", "add"}


async def test_a_failed_child_raises_in_the_workflow() -> None:
    @workflow
    async def fail() -> None:
        raise ValueError("no")

    @workflow
    async def flow() -> str:
        try:
            await run_agent(fail)
        except StepFailed as exc:
            return exc.message
        return ""

    async with App([flow, fail], MemoryStore()) as app:
        assert "no" in (await app.run(flow)).output


async def test_items_are_mapped_with_a_limit() -> None:
    most = running = 0

    @tool(effect="pure")
    async def work(number: int) -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return -number

    @workflow
    async def flow() -> list[int]:
        return await map_items(work, range(20), limit=3)

    async with App([flow], MemoryStore()) as app:
        assert (await app.run(flow)).output == [-number for number in range(20)]
    assert most == 3


async def test_a_workflow_is_submitted_by_name() -> None:
    async with App([add], MemoryStore()) as app:
        run_id = await app.submit("add", inputs={"left": 2})
        assert (await app.result(run_id)).output == 5


async def test_a_transcript_shows_the_calls_of_a_workflow() -> None:
    async with App([add], MemoryStore()) as app:
        await app.run(add, inputs={"left": 2}, run_id="r")
        events = [event async for event in app.events("r")]
        kinds = [type(event).__name__ for event in events]
        assert "ToolCalled" in kinds
        assert "ToolReturned" in kinds


def test_a_workflow_as_a_tool_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match="Expected `int`"):
        add.to_tool().check({"left": "many"})


async def test_an_item_that_fails_cancels_the_others_and_its_error_is_raised() -> None:
    waiting, cancelled = asyncio.Event(), list[str]()

    @tool(effect="pure")
    async def work(item: str) -> None:
        if item == "fails":
            await waiting.wait()
            raise LookupError("no such item")
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # cleaning up takes more than one turn of the event loop
                await asyncio.sleep(0)
            cancelled.append(item)

    @workflow
    async def flow() -> list[str]:
        try:
            await map_items(work, ["waits", "fails"])
        except StepFailed as exc:
            return [exc.message, *cancelled]
        return []

    async with App([flow], MemoryStore()) as app:
        assert (await app.run(flow)).output == ["no such item", "waits"]
