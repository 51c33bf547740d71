"""Tool calls that are retried, and tool calls that take too long."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.core.execution.test_model_outage import Events
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, Retry, tool
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Tool
from holdfast.core.errors import DefinitionError, Shutdown, ToolFailed, ToolTimeout
from holdfast.core.execution.executor import Executor
from holdfast.core.ports import Ports
from holdfast.core.run.messages import ToolResult
from holdfast.testing.manual_clock import ManualClock

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
THREE = Retry(max_tries=3, jitter=0)


def calling(*tools: Tool) -> Agent:
    """An agent that calls each of the tools once, all at the same time."""
    calls = [call(str(number), each.name) for number, each in enumerate(tools, start=1)]
    return Agent(name="a", model=ScriptedModel(tool_reply(*calls), "done"), tools=tools)


def get_results(messages: Any) -> list[Any]:
    return [(message.content, message.error) for message in messages if isinstance(message, ToolResult)]


@asynccontextmanager
async def running(executor: Executor, agent: Agent, **options: Any) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.create_task(executor.run(agent, "go", **options))
    yield task
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_transient_error_of_a_tool_is_retried(effect: str, threaded: bool) -> None:
    """Without a pause, so that the thread need not be awaited by the manual clock."""
    made: list[list[int]] = []

    def fetch(numbers: list[int]) -> str:
        made.append(list(numbers))
        numbers.clear()
        if len(made) < 3:
            raise ConnectionResetError("cut")
        return "fetched"

    async def fetch_async(numbers: list[int]) -> str:
        return fetch(numbers)

    events = Events()
    quick = Retry(max_tries=3, initial_delay=timedelta(0))
    fetcher = Tool(fetch if threaded else fetch_async, name="fetch", effect=effect, retry=quick)
    model = ScriptedModel(tool_reply(call("1", "fetch", numbers=[1, 2])), "done")
    result = await Executor(Ports(listener=events)).run(Agent(name="a", model=model, tools=[fetcher]), "go")
    assert get_results(result.messages) == [("fetched", False)]
    assert made == [[1, 2]] * 3, "each attempt gets its own arguments"
    assert result.usage.tool_calls == 1
    assert [(each.tool, each.call_id, each.attempt) for each in events.retries] == [
        ("fetch", "1", 1),
        ("fetch", "1", 2),
    ]


async def test_when_the_attempts_are_used_up_the_model_gets_the_error() -> None:
    clock, made = ManualClock(), 0

    @tool(effect="pure", retry=THREE)
    async def fetch() -> str:
        nonlocal made
        made += 1
        raise ConnectionResetError("cut")

    async with running(Executor(clock=clock), calling(fetch)) as run:
        await clock.advance(3 * SECOND)
        assert get_results((await run).messages) == [("ConnectionResetError: cut", True)]
    assert made == 3


async def test_an_error_that_is_not_transient_is_not_retried_nor_is_a_tool_without_a_policy() -> None:
    made: list[str] = []

    @tool(effect="pure", retry=THREE)
    async def broken() -> str:
        made.append("broken")
        raise ValueError("broken")

    @tool(effect="pure")
    async def plain() -> str:
        made.append("plain")
        raise TimeoutError("late")

    await Executor().run(calling(broken, plain), "go")
    assert sorted(made) == ["broken", "plain"]


def test_a_once_tool_cannot_be_retried() -> None:
    with pytest.raises(DefinitionError, match="effect is once: it cannot be retried"):

        @tool(retry=Retry())
        def pay() -> None: ...


@pytest.mark.parametrize(
    "options", [{"retry": 3, "effect": "pure"}, {"timeout": 5}, {"timeout": timedelta(0)}, {"timeout": "1s"}], ids=repr
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=next(iter(options))):

        @tool(**options)
        def look() -> None: ...


async def test_a_shutdown_ends_the_pause_of_a_call_and_it_is_repeated_after_the_resume() -> None:
    clock, made, up = ManualClock(), 0, False

    @tool(effect="pure", retry=THREE)
    async def fetch() -> str:
        nonlocal made
        made += 1
        if not up:
            raise ConnectionResetError("cut")
        return "fetched"

    host = SimulatedHost(clock=clock)
    async with running(host.executor, calling(fetch), run_id="r") as run:
        await clock.advance(timedelta(0))
        await host.executor.shutdown(timedelta(hours=1))
        with pytest.raises(Shutdown):
            await run
    up = True
    result = await SimulatedHost(host.inner).resume(calling(fetch), "r")
    assert (get_results(result.messages), made) == ([("fetched", False)], 2)


async def test_a_shutdown_does_not_cut_off_a_once_call_beside_one_that_pauses() -> None:
    clock, release, up = ManualClock(), asyncio.Event(), False

    @tool(effect="pure", retry=THREE)
    async def fetch() -> str:
        if not up:
            raise ConnectionResetError("cut")
        return "fetched"

    @tool
    async def pay() -> str:
        await release.wait()
        return "paid"

    host = SimulatedHost(clock=clock)
    async with running(host.executor, calling(fetch, pay), run_id="r") as run:
        await clock.advance(timedelta(0))
        shutdown = asyncio.create_task(host.executor.shutdown(timedelta(hours=1)))
        await clock.advance(timedelta(0))
        release.set()
        up = True
        await clock.advance(SECOND)
        with pytest.raises(Shutdown):
            await run
        await shutdown
    result = await SimulatedHost(host.inner).resume(calling(fetch, pay), "r")
    assert get_results(result.messages) == [("fetched", False), ("paid", False)]


# -- timeouts ---------------------------------------------------------------------------------------------------------


async def test_an_async_call_that_takes_too_long_is_cancelled_and_reported() -> None:
    clock, ended = ManualClock(), False

    @tool(effect="pure", timeout=5 * SECOND)
    async def look() -> str:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True
        return "never"

    async with running(Executor(clock=clock), calling(look)) as run:
        await clock.advance(5 * SECOND)
        [(text, error)] = get_results((await run).messages)
    assert error
    assert text == "ToolTimeout: tool look did not finish within 5 seconds. It was cancelled."
    assert ended
    assert clock.waiting == 0


async def test_a_call_that_is_quick_enough_is_no_timeout() -> None:
    clock = ManualClock()

    @tool(effect="pure", timeout=5 * SECOND)
    async def look() -> str:
        return "seen"

    assert get_results((await Executor(clock=clock).run(calling(look), "go")).messages) == [("seen", False)]
    assert clock.waiting == 0


async def test_a_timeout_of_the_tools_own_is_an_error_like_any_other() -> None:
    @tool(effect="pure", timeout=5 * SECOND)
    async def look() -> str:
        raise TimeoutError("of its own")

    [(text, _)] = get_results((await Executor().run(calling(look), "go")).messages)
    assert text == "TimeoutError: of its own"


async def test_a_once_call_that_was_cancelled_may_have_taken_effect() -> None:
    clock = ManualClock()

    @tool(timeout=SECOND)
    async def pay() -> str:
        await asyncio.Event().wait()
        return "never"

    async with running(Executor(clock=clock), calling(pay)) as run:
        await clock.advance(SECOND)
        [(text, _)] = get_results((await run).messages)
    assert "may or may not have taken effect" in text


async def test_a_thread_may_still_be_running_and_its_call_is_not_repeated() -> None:
    clock, started, release, made = ManualClock(), asyncio.Event(), threading.Event(), 0
    loop = asyncio.get_running_loop()

    @tool(timeout=SECOND)
    def pay() -> str:
        nonlocal made
        made += 1
        loop.call_soon_threadsafe(started.set)
        release.wait(60)
        return "paid"

    host = SimulatedHost(clock=clock)
    model = ScriptedModel(tool_reply(call("1", "pay")), Shutdown("now"))
    try:
        async with running(host.executor, Agent(name="a", model=model, tools=[pay]), run_id="r") as run:
            await started.wait()
            await clock.advance(SECOND)
            with pytest.raises(Shutdown):
                await run
        assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
        result = await SimulatedHost(host.inner).resume(calling(pay), "r")
    finally:
        release.set()
    [(text, error)] = get_results(result.messages)
    assert error
    assert "pay did not finish within 1 seconds" in text
    assert "may still be running" in text
    assert made == 1


async def test_a_thread_that_timed_out_is_not_retried() -> None:
    clock, started, release, made = ManualClock(), asyncio.Event(), threading.Event(), 0
    loop = asyncio.get_running_loop()

    @tool(effect="idempotent", timeout=SECOND, retry=THREE)
    def put() -> None:
        nonlocal made
        made += 1
        loop.call_soon_threadsafe(started.set)
        release.wait(60)

    try:
        async with running(Executor(clock=clock), calling(put)) as run:
            await started.wait()
            await clock.advance(MINUTE)
            [(text, _)] = get_results((await run).messages)
    finally:
        release.set()
    assert "may still be running" in text
    assert made == 1


async def test_an_async_call_that_timed_out_is_retried_if_it_may_be() -> None:
    clock, made = ManualClock(), 0

    @tool(effect="pure", timeout=SECOND, retry=THREE)
    async def look() -> str:
        nonlocal made
        made += 1
        if made < 3:
            await asyncio.Event().wait()
        return "seen"

    async with running(Executor(clock=clock), calling(look)) as run:
        await clock.advance(MINUTE)
        assert get_results((await run).messages) == [("seen", False)]
    assert made == 3


async def test_a_call_whose_tool_was_cancelled_by_its_own_code_has_not_timed_out() -> None:
    @tool(timeout=MINUTE)
    async def look() -> str:
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        waiting.cancel()
        await waiting
        return "never"

    result = await Executor(clock=ManualClock()).run(calling(look), "go")
    assert get_results(result.messages) == [("CancelledError: ", True)]


async def test_a_timeout_can_fail_the_run() -> None:
    clock = ManualClock()

    @tool(effect="pure", timeout=SECOND, on_error="raise")
    async def look() -> str:
        await asyncio.Event().wait()
        return "never"

    async with running(Executor(clock=clock), calling(look)) as run:
        await clock.advance(SECOND)
        with fails_with(ToolFailed) as raised:
            await run
    assert isinstance(raised.value.__cause__, ToolTimeout)


async def test_a_cancelled_run_cancels_a_call_with_a_timeout() -> None:
    clock, begun, ended = ManualClock(), asyncio.Event(), asyncio.Event()

    @tool(timeout=MINUTE)
    async def look() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with running(Executor(clock=clock), calling(look), on_cancel="cancel") as run:
        await begun.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert ended.is_set()
    assert clock.waiting == 0
