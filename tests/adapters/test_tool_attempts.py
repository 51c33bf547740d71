"""Tools of pydantic-ai agents that are retried, and holdfast tools with a timeout beside them."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart
from tests.adapters.scripted_model import ScriptedModel, call

from holdfast import Executor, Retry, tool
from holdfast.adapters.pydantic_ai import durable
from holdfast.core.errors import DefinitionError
from holdfast.core.result import Result
from holdfast.testing.clock import ManualClock

SECOND = timedelta(seconds=1)
QUICK = Retry(attempts=3, initial_delay=timedelta(0))


def get_results(result: Result) -> list[tuple[str, str]]:
    return [
        (str(part.content), part.outcome)
        for message in result.messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_tool_of_the_agent_is_retried(threaded: bool) -> None:
    agent = Agent(ScriptedModel([call("1", "fetch")], "done").model, name="a")
    made = 0

    def fetch() -> str:
        nonlocal made
        made += 1
        if made < 3:
            raise ConnectionResetError("cut")
        return "fetched"

    async def fetch_async() -> str:
        return fetch()

    if threaded:
        agent.tool_plain(name="fetch")(fetch)
    else:
        agent.tool_plain(name="fetch")(fetch_async)
    result = await Executor().run(durable(agent, effects={"fetch": "pure"}, tool_retry={"fetch": QUICK}), "go")
    assert (get_results(result), made, result.usage.tool_calls) == ([("fetched", "success")], 3, 1)


async def test_a_tool_without_a_policy_fails_the_run_as_without_holdfast() -> None:
    agent = Agent(ScriptedModel([call("1", "fetch")], "done").model, name="a")
    made = 0

    @agent.tool_plain(metadata={"effect": "pure"})
    async def fetch() -> str:
        nonlocal made
        made += 1
        raise ConnectionResetError("cut")

    with pytest.raises(ConnectionResetError):
        await Executor().run(durable(agent), "go")
    assert made == 1


async def test_a_once_tool_of_the_agent_cannot_be_retried() -> None:
    agent = Agent(ScriptedModel([call("1", "pay")], "done").model, name="a")

    @agent.tool_plain
    async def pay() -> str:
        raise AssertionError("it was called")

    with pytest.raises(DefinitionError, match="pay is once"):
        durable(agent, effects={"pay": "once"}, tool_retry={"pay": QUICK})
    with pytest.raises(DefinitionError, match="pay is once"):
        await Executor().run(durable(agent, tool_retry={"pay": QUICK}), "go")
    with pytest.raises(DefinitionError, match="give a holdfast Retry"):
        durable(agent, tool_retry={"pay": 3})  # type: ignore[dict-item]


async def test_a_holdfast_tool_has_its_own_policy_and_timeout() -> None:
    clock, made = ManualClock(), 0

    @tool(effect="pure", retry=Retry(attempts=3, jitter=0), timeout=SECOND)
    async def look() -> str:
        nonlocal made
        made += 1
        if made == 1:
            raise ConnectionResetError("cut")
        if made == 2:
            await asyncio.Event().wait()
        return "seen"

    @tool(timeout=2 * SECOND)
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    agent = durable(Agent(ScriptedModel([call("1", "look")], [call("2", "wait")], "done").model, name="a"))
    run = asyncio.create_task(Executor(clock=clock).run(replace(agent, tools=[look, wait]), "go"))
    while not run.done():
        await (clock.advance(SECOND) if clock.waiting else asyncio.sleep(0))
    (seen, ok), (late, failed) = get_results(await run)
    assert (seen, ok, failed, made) == ("seen", "success", "failed", 3)
    assert "wait did not finish within 2 seconds" in late
