"""Tools of pydantic-ai agents that are retried, and holdfast tools with a timeout beside them."""

import asyncio
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ToolReturnPart
from tests.adapters.scripted_model import ScriptedModel, call
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast import Retry, RunWaiting, tool
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Executor
from holdfast.core.errors import DefinitionError, Shutdown
from holdfast.core.run.result import Result
from holdfast.testing.manual_clock import ManualClock

SECOND = timedelta(seconds=1)
QUICK = Retry(max_tries=3, initial_delay=timedelta(0))


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
    result = await Executor().run(durable(agent, tools={"fetch": ToolPolicy("pure", retry=QUICK)}), "go")
    assert (get_results(result), made, result.usage.tool_calls) == ([("fetched", "success")], 3, 1)


async def test_a_tool_without_a_policy_fails_the_run_as_without_holdfast() -> None:
    agent = Agent(ScriptedModel([call("1", "fetch")], "done").model, name="a")
    made = 0

    @agent.tool_plain(metadata={"effect": "pure"})
    async def fetch() -> str:
        nonlocal made
        made += 1
        raise ConnectionResetError("cut")

    with fails_with(ConnectionResetError):
        await Executor().run(durable(agent), "go")
    assert made == 1


def test_a_once_tool_cannot_be_retried() -> None:
    with pytest.raises(DefinitionError, match="effect is once: it cannot be retried"):
        ToolPolicy("once", retry=QUICK)
    with pytest.raises(DefinitionError, match="effect is once: it cannot be retried"):
        ToolPolicy(retry=QUICK)
    with pytest.raises(DefinitionError, match="give a holdfast Retry"):
        ToolPolicy("pure", retry=3)  # type: ignore[arg-type]


async def test_a_holdfast_tool_has_its_own_policy_and_timeout() -> None:
    clock, made = ManualClock(), 0

    @tool(effect="pure", retry=Retry(max_tries=3, jitter=0), timeout=SECOND)
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


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_tool_that_asks_the_model_to_retry_is_not_retried(threaded: bool) -> None:
    agent = Agent(ScriptedModel([call("1", "fetch")], "done").model, name="a")
    made = 0

    def fetch() -> str:
        nonlocal made
        made += 1
        raise ModelRetry("ask for less") from ConnectionResetError("cut")

    async def fetch_async() -> str:
        return fetch()

    agent.tool_plain(name="fetch")(fetch if threaded else fetch_async)
    result = await Executor().run(durable(agent, tools={"fetch": ToolPolicy("pure", retry=QUICK)}), "go")
    [(text, outcome)] = get_results(result)
    assert ("ask for less" in text, outcome, made) == (True, "retried", 1)


async def test_a_tool_that_needs_approval_is_not_retried() -> None:
    agent = Agent(ScriptedModel([call("1", "fetch")], "done").model, name="a")
    made = 0

    @agent.tool_plain
    async def fetch() -> str:
        nonlocal made
        made += 1
        raise ApprovalRequired

    everything = replace(QUICK, retry_on=Exception)
    with pytest.raises(RunWaiting, match="approval of fetch"):
        await Executor().run(durable(agent, tools={"fetch": ToolPolicy("pure", retry=everything)}), "go")
    assert made == 1


async def test_a_transient_error_of_a_thread_that_outlives_a_shutdown_is_retried_after_the_resume() -> None:
    clock, begun, go_on, made = ManualClock(), asyncio.Event(), threading.Event(), 0
    loop = asyncio.get_running_loop()
    pydantic_ai_agent = Agent(ScriptedModel([call("1", "fetch")], "done").model, name="a")

    @pydantic_ai_agent.tool_plain
    def fetch() -> str:
        nonlocal made
        made += 1
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)
        if made == 1:
            raise ConnectionResetError("cut")
        return "fetched"

    agent = durable(pydantic_ai_agent, tools={"fetch": ToolPolicy("pure", retry=QUICK)})
    host = SimulatedHost(clock=clock)
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await begun.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(SECOND))
    await clock.advance(SECOND)
    go_on.set()
    with pytest.raises(Shutdown):
        await run
    await shutdown
    result = await SimulatedHost(host.inner).resume(agent, "r")
    assert (get_results(result), made) == ([("fetched", "success")], 2)


class HostStops(Exception):
    """The host's own announcement of a shutdown."""


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_holdfast_tool_that_announces_a_shutdown_interrupts_the_run(threaded: bool) -> None:
    def stop() -> str:
        raise ValueError from HostStops()

    async def stop_async() -> str:
        return stop()

    stopper = tool(name="stop", effect="pure", retry=replace(QUICK, retry_on=Exception))(
        stop if threaded else stop_async
    )
    agent = replace(durable(Agent(ScriptedModel([call("1", "stop")], "done").model, name="a")), tools=[stopper])
    host = SimulatedHost(shutdown_exceptions=(HostStops,))
    with pytest.raises(ValueError, match=r"^$"):
        await host.executor.run(agent, "go", run_id="r")
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


def test_a_holdfast_tool_with_a_timeout_that_exits_leaves_its_run_with_a_strike() -> None:
    @tool(effect="pure", timeout=SECOND)
    async def end() -> str:
        sys.exit(3)

    agent = replace(durable(Agent(ScriptedModel([call("1", "end")], "done").model, name="a")), tools=[end])
    hosts: list[SimulatedHost] = []

    async def main() -> None:
        hosts.append(SimulatedHost(shutdown_timeout=timedelta(0)))
        await hosts[0].executor.run(agent, "go", run_id="r")

    with pytest.raises(SystemExit):
        asyncio.run(main())
    [record] = asyncio.run(hosts[0].list_records())
    assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 1)
