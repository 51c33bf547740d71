"""Sync tools of pydantic-ai run in holdfast's threads, and cannot start, hang or exit behind the back of their run."""

import asyncio
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart
from tests.adapters.scripted_model import ScriptedModel, call
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.checkpointer import CLAIM_PROOF_TTL
from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.tool_threads import MAX_TOOL_THREADS
from holdfast.core.errors import RunLost, Shutdown
from holdfast.testing.manual_clock import ManualClock

CALLS = MAX_TOOL_THREADS + 8

GRACE = timedelta(seconds=30)


class Ledger:
    """An agent with a `once` tool that waits in its thread until it is let go, and records each call that has begun."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun, self.go_on = asyncio.Event(), threading.Event()
        self.started: list[int] = []
        self._lock = threading.Lock()
        batch = [call(str(number), "book", number=number) for number in range(CALLS)]
        agent = Agent(ScriptedModel(batch, "done").model, name="a")
        agent.tool_plain(self.book)
        self.agent = durable(agent)

    def book(self, number: int) -> str:
        with self._lock:
            self.started.append(number)
        self._loop.call_soon_threadsafe(self._begun.set)
        assert self.go_on.wait(60)
        return "booked"

    async def fill_threads(self) -> None:
        async with asyncio.timeout(60):
            while len(self.started) < MAX_TOOL_THREADS:
                await self._begun.wait()
                self._begun.clear()


async def test_a_queued_call_does_not_start_after_another_worker_has_taken_the_run() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    ledger = Ledger()
    run = asyncio.create_task(host.executor.run(ledger.agent, "go", run_id="r"))
    await ledger.fill_threads()
    await host.inner.deregister_worker(host.checkpoints.worker_id)
    await SimulatedHost(host.inner).claim(ledger.agent, "r")
    await clock.advance(CLAIM_PROOF_TTL)
    ledger.go_on.set()
    with pytest.raises(RunLost):
        await run
    assert len(ledger.started) == MAX_TOOL_THREADS


async def test_queued_calls_of_an_interrupted_run_are_made_on_resume() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    ledger = Ledger()
    run = asyncio.create_task(host.executor.run(ledger.agent, "go", run_id="r"))
    await ledger.fill_threads()
    shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
    await clock.advance(GRACE)
    ledger.go_on.set()
    with pytest.raises(Shutdown):
        await run
    await shutdown
    later = Ledger()
    later.go_on.set()
    assert (await SimulatedHost(host.inner).resume(later.agent, "r")).output == "done"
    assert sorted(ledger.started + later.started) == list(range(CALLS))


async def test_a_tool_that_raises_stop_iteration_does_not_hang_its_run() -> None:
    agent = Agent(ScriptedModel([call("1", "take")], "done").model, name="a")

    @agent.tool_plain
    def take() -> str:
        return next(iter(()))

    async with asyncio.timeout(60):
        with fails_with(RuntimeError, match="the tool raised StopIteration"):
            await SimulatedHost().executor.run(durable(agent), "go")


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_tool_that_exits_leaves_its_run_with_a_strike(in_thread: bool) -> None:
    hosts: list[SimulatedHost] = []

    def leave() -> None:
        sys.exit(3)

    async def leave_async() -> None:
        sys.exit(3)

    async def main() -> None:
        hosts.append(SimulatedHost())
        agent = Agent(ScriptedModel([call("1", "leave"), call("2", "look")], "done").model, name="a")
        tool: Any = leave if in_thread else leave_async
        agent.tool_plain(name="leave")(tool)

        @agent.tool_plain
        async def look() -> str:
            return "seen"

        await hosts[0].executor.run(durable(agent), "go", run_id="r")

    with pytest.raises(SystemExit):
        asyncio.run(main())
    [record] = asyncio.run(hosts[0].list_records())
    assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 1)


@pytest.mark.parametrize(("levels", "kept"), [(190, True), (220, False), (981, False)])
async def test_a_result_that_is_nested_too_deeply_is_an_error_for_the_model(levels: int, kept: bool) -> None:
    script = ScriptedModel([call("1", "look")], "done")
    agent = Agent(script.model, name="a")

    @agent.tool_plain
    async def look() -> Any:
        nested: Any = []
        for _ in range(levels):
            nested = [nested]
        return nested

    assert (await SimulatedHost().executor.run(durable(agent), "go")).output == "done"
    [shown] = script.asked[-1][-1].parts
    assert isinstance(shown, ToolReturnPart)
    assert shown.outcome == ("success" if kept else "failed")
