"""Retries meet threads, timeouts, `sys.exit`, child runs and shutdowns."""

import asyncio
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.core.execution.test_process_exit import run_beside_another
from tests.core.execution.test_tool_attempts import calling, get_results, running
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, Retry, tool
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.agents.tool_threads import MAX_TOOL_THREADS, THREAD_NAME
from holdfast.core.errors import Shutdown
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.stop import BLOCKED_TOOL_TIMEOUT
from holdfast.core.run.messages import Reply
from holdfast.testing.manual_clock import ManualClock

SECOND, GRACE = timedelta(seconds=1), timedelta(seconds=30)
THREE = Retry(max_tries=3, jitter=0)
QUICK = Retry(max_tries=3, initial_delay=timedelta(0))


class Attempts:
    """A sync tool: its first attempts raise a transient error, and the next one waits until it is let go."""

    def __init__(self, failures: int = 1) -> None:
        self._loop, self._failures = asyncio.get_running_loop(), failures
        self._lock = threading.Lock()
        self.blocked = asyncio.Event()
        self.go_on = threading.Event()
        self.made = 0
        self.working = 0

    def fetch(self) -> str:
        with self._lock:
            self.made += 1
            self.working += 1
            fails = self.made <= self._failures
        try:
            if fails:
                raise ConnectionResetError("cut")
            self._loop.call_soon_threadsafe(self.blocked.set)
            assert self.go_on.wait(60)
        finally:
            with self._lock:
                self.working -= 1
        return "fetched"


async def test_no_more_threads_than_the_limit_work_when_calls_are_retried() -> None:
    clock, count = ManualClock(), MAX_TOOL_THREADS + 4
    attempts = Attempts(failures=count)
    tools = [Tool(attempts.fetch, name=f"fetch{number}", effect="pure", retry=THREE) for number in range(count)]
    async with running(Executor(clock=clock), calling(*tools)) as run:
        await _until(lambda: clock.waiting == count)
        await clock.advance(SECOND)
        await _until(lambda: attempts.working >= MAX_TOOL_THREADS)
        threads = [each for each in threading.enumerate() if each.name == THREAD_NAME]
        attempts.go_on.set()
        assert get_results((await run).messages) == [("fetched", False)] * count
    assert (len(threads), attempts.made) == (MAX_TOOL_THREADS, 2 * count)


async def test_a_call_that_pauses_occupies_no_thread() -> None:
    clock, attempts = ManualClock(), Attempts(failures=MAX_TOOL_THREADS)
    paused = [
        Tool(attempts.fetch, name=f"fetch{number}", effect="pure", retry=THREE) for number in range(MAX_TOOL_THREADS)
    ]

    @tool(effect="pure")
    def look() -> str:
        return "seen"

    executor = Executor(clock=clock)
    attempts.go_on.set()
    async with running(executor, calling(*paused)) as first:
        await _until(lambda: clock.waiting == MAX_TOOL_THREADS)
        result = await executor.run(calling(look), "go")
        assert get_results(result.messages) == [("seen", False)]
        assert not first.done()
        await clock.advance(SECOND)
        await first


async def test_a_shutdown_gives_up_a_second_attempt_that_never_returns(caplog: pytest.LogCaptureFixture) -> None:
    clock, attempts = ManualClock(), Attempts()
    host = SimulatedHost(clock=clock)
    fetch = Tool(attempts.fetch, name="fetch", effect="pure", retry=THREE)
    try:
        async with running(host.executor, calling(fetch), run_id="r") as run:
            while not attempts.blocked.is_set():
                await clock.advance(SECOND)
            shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
            await clock.advance(GRACE)
            await clock.advance(BLOCKED_TOOL_TIMEOUT)
            with pytest.raises(Shutdown):
                await run
            await shutdown
    finally:
        attempts.go_on.set()
    assert "run r, tool fetch, call 1" in caplog.text


async def test_a_transient_error_of_a_thread_that_outlives_a_shutdown_is_retried_after_the_resume() -> None:
    clock, begun, go_on, made = ManualClock(), asyncio.Event(), threading.Event(), 0
    loop = asyncio.get_running_loop()

    @tool(effect="pure", retry=THREE)
    def fetch() -> str:
        nonlocal made
        made += 1
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(60)
        if made == 1:
            raise ConnectionResetError("cut")
        return "fetched"

    host = SimulatedHost(clock=clock)
    async with running(host.executor, calling(fetch), run_id="r") as run:
        await begun.wait()
        shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
        await clock.advance(GRACE)
        go_on.set()
        with pytest.raises(Shutdown):
            await run
        await shutdown
    result = await SimulatedHost(host.inner).resume(calling(fetch), "r")
    assert (get_results(result.messages), made) == ([("fetched", False)], 2)


async def test_a_shutdown_ends_the_pauses_of_all_calls_if_none_works() -> None:
    clock, up = ManualClock(), False

    async def fetch() -> str:
        if not up:
            raise ConnectionResetError("cut")
        return "fetched"

    tools = [Tool(fetch, name=name, effect="pure", retry=THREE) for name in ("left", "right")]
    host = SimulatedHost(clock=clock)
    async with running(host.executor, calling(*tools), run_id="r") as run:
        await clock.advance(timedelta(0))
        await host.executor.shutdown(timedelta(hours=1))
        with pytest.raises(Shutdown):
            await run
    up = True
    result = await SimulatedHost(host.inner).resume(calling(*tools), "r")
    assert get_results(result.messages) == [("fetched", False)] * 2


async def test_a_draining_run_stops_when_the_last_call_that_works_has_ended() -> None:
    clock, release = ManualClock(), asyncio.Event()

    @tool(effect="pure", retry=THREE)
    async def fetch() -> str:
        raise ConnectionResetError("cut")

    @tool
    async def pay() -> str:
        await release.wait()
        return "paid"

    host = SimulatedHost(clock=clock)
    async with running(host.executor, calling(fetch, pay), run_id="r") as run:
        await clock.advance(timedelta(0))
        shutdown = asyncio.create_task(host.executor.shutdown(timedelta(hours=1)))
        await clock.advance(timedelta(0))
        assert not run.done()
        release.set()
        with pytest.raises(Shutdown):
            await run
        await shutdown
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


# -- sys.exit ---------------------------------------------------------------------------------------------------------


def exit_in_thread() -> None:
    sys.exit(3)


async def exit_in_loop() -> None:
    sys.exit(3)


def exit_in_wrapped_coroutine() -> Any:
    return exit_in_loop()


@pytest.mark.parametrize("options", [{"timeout": GRACE}, {"retry": Retry(retry_on=BaseException)}], ids=str)
@pytest.mark.parametrize("function", [exit_in_thread, exit_in_loop, exit_in_wrapped_coroutine])
def test_a_tool_with_a_timeout_or_retries_that_ends_the_process_interrupts_all_runs(
    function: Callable[..., Any], options: dict[str, Any]
) -> None:
    end = Tool(function, name="end", effect="pure", **options)
    culprit = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "end"))), tools=[end])
    assert run_beside_another(culprit) == {
        "culprit": (RunStatus.INTERRUPTED, 1),
        "innocent": (RunStatus.INTERRUPTED, 0),
    }


# -- child runs -------------------------------------------------------------------------------------------------------


async def test_a_further_attempt_attaches_to_the_children_of_the_first() -> None:
    child = Agent(name="c", model=ScriptedModel("done"))
    seen: list[list[str]] = []

    @tool(effect="idempotent", retry=QUICK)
    async def delegate() -> str:
        seen.append([(await current_call().run(child, "go")).run_id for _ in range(len(seen) + 1)])
        if len(seen) == 1:
            raise ConnectionResetError("cut")
        return "delegated"

    result = await SimulatedHost().executor.run(calling(delegate), "go")
    assert get_results(result.messages) == [("delegated", False)]
    assert seen[0][0] == seen[1][0] != seen[1][1]


async def test_a_further_attempt_does_not_attach_to_a_child_that_the_timeout_cancelled() -> None:
    clock, made = ManualClock(), 0

    async def model(messages: Any, tools: Any) -> Reply:
        nonlocal made
        made += 1
        if made == 1:
            await asyncio.Event().wait()
        return Reply(text="done")

    @tool(effect="idempotent", retry=QUICK, timeout=SECOND)
    async def delegate() -> str:
        return str((await current_call().run(Agent(name="c", model=model), "go")).output)

    async with running(SimulatedHost(clock=clock).executor, calling(delegate)) as run:
        while not run.done():
            await clock.advance(SECOND)
        assert get_results((await run).messages) == [("done", False)]


async def _until(condition: Callable[[], bool]) -> None:
    """Let the event loop and the threads of tools work until the condition holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 the condition is of threads and of a clock, which set no event
            await asyncio.sleep(0)
