"""Shutting down while the store does not answer: the timeout holds, and the runs are left as they were last saved."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.errors import StoreFull
from holdfast.checkpoint.record import RunStatus
from holdfast.concurrency import SHUTDOWN_STORE_TIMEOUT
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import Shutdown, ShuttingDown
from holdfast.core.execution.stop import BLOCKED_TOOL_TIMEOUT
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply
from holdfast.core.run.state import RunState
from holdfast.testing.manual_clock import ManualClock

TIMEOUT = timedelta(seconds=30)


class Silence:
    """From a certain call on, a store answers nothing. `began` says that a call waits in vain."""

    def __init__(self, host: SimulatedHost) -> None:
        self.began = asyncio.Event()
        self._host = host

    def begin(self) -> None:
        self._host.store.before = self._wait

    def end(self) -> None:
        self._host.store.before = None

    async def _wait(self, method: str) -> None:
        self.began.set()
        await asyncio.Event().wait()


async def shut_down(host: SimulatedHost, clock: ManualClock, runs: "Sequence[asyncio.Task[Any]]") -> list[object]:
    """Shut the host down. How the runs ended, within the timeout and a little more."""
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(TIMEOUT)
    for _ in range(8):  # for the runs, their claims, the worker and the store
        await clock.advance(SHUTDOWN_STORE_TIMEOUT / 2)
    assert shutdown.done(), "the shutdown no longer waits for the store"
    await shutdown
    assert all(run.done() for run in runs)
    return [type(run.exception()) for run in runs]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def host(clock: ManualClock) -> SimulatedHost:
    return SimulatedHost(clock=clock)


@pytest.fixture
def silence(host: SimulatedHost) -> Silence:
    return Silence(host)


@tool(effect="pure")
async def look() -> str:
    return "seen"


def hangs(reached: asyncio.Event) -> Any:
    """A turn of a model that never comes to its end."""

    async def turn(messages: Sequence[Message]) -> Reply:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    return turn


async def test_runs_that_were_stopped_are_left_as_they_were_saved(
    host: SimulatedHost, clock: ManualClock, silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    reached = [asyncio.Event() for _ in range(3)]
    runs = [
        asyncio.create_task(
            host.executor.run(
                Agent(name="a", model=ScriptedModel(tool_reply(call("1", "look")), hangs(event)), tools=[look]),
                "go",
                run_id=f"r{n}",
            )
        )
        for n, event in enumerate(reached)
    ]
    for event in reached:
        await event.wait()
    silence.begin()
    with caplog.at_level(logging.ERROR):
        assert await shut_down(host, clock, runs) == [Shutdown] * 3
    [said] = [record.getMessage() for record in caplog.records if "stay as they were last saved" in record.message]
    assert said.endswith("r0, r1, r2")
    assert await host.get_statuses() == {f"r{n}": RunStatus.RUNNING for n in range(3)}
    await host.crash()
    model = ScriptedModel("", "done")
    result = await SimulatedHost(host.inner, clock=clock).resume(Agent(name="a", model=model, tools=[look]), "r0")
    assert (result.output, result.steps, len(model.requests)) == ("done", 2, 1)


async def test_a_write_in_progress_is_not_waited_for(host: SimulatedHost, clock: ManualClock, silence: Silence) -> None:
    async def last(messages: Sequence[Message]) -> Reply:
        silence.begin()
        return Reply(text="never saved")

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "look")), last), tools=[look])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await silence.began.wait()
    assert await shut_down(host, clock, [run]) == [Shutdown]
    assert [record.status for record in await host.list_records()] == [RunStatus.RUNNING]


async def test_an_end_that_it_refused_before_is_not_waited_for(
    host: SimulatedHost, clock: ManualClock, silence: Silence
) -> None:
    host.store.fail("release", StoreFull("no room"))
    await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go", run_id="r")
    silence.begin()
    assert await shut_down(host, clock, []) == []
    assert await host.get_statuses() == {"r": RunStatus.RUNNING}


async def test_results_of_parallel_tools_that_are_being_saved_are_not_waited_for(
    host: SimulatedHost, clock: ManualClock, silence: Silence
) -> None:
    @tool(effect="pure")
    async def pause() -> None:
        silence.begin()

    calls = tool_reply(*(call(str(number), "pause") for number in range(3)))
    agent = Agent(name="a", model=ScriptedModel(calls, "never"), tools=[pause])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await silence.began.wait()
    assert await shut_down(host, clock, [run]) == [Shutdown]


async def test_a_parent_goes_down_with_its_child(host: SimulatedHost, clock: ManualClock, silence: Silence) -> None:
    async def last(messages: Sequence[Message]) -> Reply:
        silence.begin()
        return Reply(text="never saved")

    child = Agent(name="child", model=ScriptedModel(last))

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "help")).output)

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "delegate")), "never"), tools=[delegate])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await silence.began.wait()
    assert await shut_down(host, clock, [run]) == [Shutdown]
    assert set((await host.get_statuses()).values()) == {RunStatus.RUNNING}


async def test_a_budget_that_does_not_answer_is_not_waited_for_either(clock: ManualClock) -> None:
    class Ledger:
        async def check(self, info: RunInfo, state: RunState) -> None: ...

        async def commit(self, info: RunInfo, state: RunState) -> None:
            await asyncio.Event().wait()

    host, reached = SimulatedHost(clock=clock, ports=Ports(budget=Ledger())), asyncio.Event()
    agent = Agent(name="a", model=ScriptedModel(hangs(reached)))
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await reached.wait()
    assert await shut_down(host, clock, [run]) == [Shutdown]


async def test_a_claimed_run_that_is_not_admitted_any_more_is_not_waited_for(
    host: SimulatedHost, clock: ManualClock, silence: Silence
) -> None:
    agent, reached = Agent(name="a", model=ScriptedModel(hangs(asyncio.Event()))), asyncio.Event()
    first = SimulatedHost(host.inner, clock=clock)
    left = asyncio.create_task(
        first.executor.run(Agent(name="a", model=ScriptedModel(hangs(reached))), "go", run_id="r")
    )
    await reached.wait()
    assert await shut_down(first, clock, [left]) == [Shutdown]
    resumption = await host.claim(agent, "r")
    silence.begin()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    resumed = asyncio.create_task(host.executor.resume(agent, resumption))
    for _ in range(8):  # for the admission, the claims, the worker and the store
        await clock.advance(SHUTDOWN_STORE_TIMEOUT / 2)
    assert (shutdown.done(), resumed.done()) == (True, True)
    assert type(resumed.exception()) is ShuttingDown


async def test_a_store_that_is_slow_is_waited_for_while_runs_come_to_their_end(
    host: SimulatedHost, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    reached = [asyncio.Event() for _ in range(8)]
    turn = asyncio.Lock()
    runs = [
        asyncio.create_task(host.executor.run(Agent(name="a", model=ScriptedModel(hangs(event))), "go", run_id=f"r{n}"))
        for n, event in enumerate(reached)
    ]
    for event in reached:
        await event.wait()

    async def one_at_a_time(method: str) -> None:
        async with turn:
            await clock.sleep(SHUTDOWN_STORE_TIMEOUT / 5)

    host.store.before = one_at_a_time
    shutdown = asyncio.create_task(host.executor.shutdown(timedelta(0)))
    while not shutdown.done():
        await clock.advance(SHUTDOWN_STORE_TIMEOUT / 10)
    assert [type(error) for error in await asyncio.gather(*runs, return_exceptions=True)] == [Shutdown] * 8
    assert set((await host.get_statuses()).values()) == {RunStatus.INTERRUPTED}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_run_that_waits_for_its_thread_is_not_given_up(host: SimulatedHost, clock: ManualClock) -> None:
    begun, go = threading.Event(), threading.Event()

    @tool(effect="pure")
    def slow() -> str:
        begun.set()
        go.wait(60)
        return "seen"

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "slow")), "done"), tools=[slow])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await asyncio.to_thread(begun.wait, 60)
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(TIMEOUT + BLOCKED_TOOL_TIMEOUT - timedelta(seconds=1))
    assert not shutdown.done()
    go.set()
    with pytest.raises(Shutdown):
        await run
    await shutdown
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
