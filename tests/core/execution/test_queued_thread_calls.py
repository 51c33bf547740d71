"""Sync tools beyond the number of threads wait for a slot: nothing of them starts for a run that is stopped or lost."""

import asyncio
import threading
from datetime import timedelta

import pytest
from tests.core.null_listener import NullListener
from tests.core.recording_ports import RecordingPorts
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import App, tool
from holdfast.checkpoint.checkpointer import CLAIM_PROOF_TTL
from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_threads import MAX_TOOL_THREADS
from holdfast.core.errors import RunCancelled, RunLost, Shutdown
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import ToolResult
from holdfast.core.run.run_events import Event, ToolCalled
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

CALLS = MAX_TOOL_THREADS + 8

GRACE = timedelta(seconds=30)


class Ledger:
    """A `once` tool that waits in its thread until it is let go, and records each call that has begun."""

    def __init__(self, *, open: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.begun = asyncio.Event()
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self.started: list[int] = []
        self.tool = Tool(self._book, name="book")
        if open:
            self._go_on.set()

    def _book(self, number: int) -> str:
        with self._lock:
            self.started.append(number)
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self._go_on.wait(60)
        return f"booked {number}"

    def let_go(self) -> None:
        self._go_on.set()

    def make_agent(self) -> tuple[Agent, ScriptedModel]:
        batch = tool_reply(*(call(str(number), "book", number=number) for number in range(CALLS)))
        model = ScriptedModel(batch, "done")
        return Agent(name="a", model=model, tools=[self.tool]), model


async def _fill_threads(ledger: Ledger) -> int:
    """Return the number of calls that have begun, once every thread has one."""
    async with asyncio.timeout(60):
        while len(ledger.started) < MAX_TOOL_THREADS:
            await ledger.begun.wait()
            ledger.begun.clear()
    return len(ledger.started)


async def test_a_queued_call_does_not_start_after_another_worker_has_taken_the_run() -> None:
    clock, ports = ManualClock(), RecordingPorts()
    host = SimulatedHost(clock=clock, ports=ports.ports)
    ledger = Ledger()
    agent, _ = ledger.make_agent()
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    begun = await _fill_threads(ledger)
    other = SimulatedHost(host.inner)
    await host.inner.deregister_worker(host.checkpoints.worker_id)
    await other.claim(agent, "r")
    await clock.advance(CLAIM_PROOF_TTL)
    ledger.let_go()
    with pytest.raises(RunLost):
        await run
    assert len(ledger.started) == begun
    assert len([heard for heard in ports.calls if "tool_call" in heard]) == begun


async def test_a_queued_call_does_not_start_after_a_cancel() -> None:
    host = SimulatedHost()
    ledger = Ledger()
    agent, _ = ledger.make_agent()
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    begun = await _fill_threads(ledger)
    execution = host.executor.get_attempt("r")
    assert execution is not None
    execution.stop(RunCancelled("run r was cancelled"))
    with pytest.raises(RunCancelled):
        await run
    ledger.let_go()
    await asyncio.to_thread(_join_tool_threads)
    assert len(ledger.started) == begun


async def test_queued_calls_of_an_interrupted_run_are_not_in_doubt_and_are_made_on_resume() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    ledger = Ledger()
    agent, _ = ledger.make_agent()
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    begun = await _fill_threads(ledger)
    shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
    await clock.advance(GRACE)
    ledger.let_go()
    with pytest.raises(Shutdown):
        await run
    await shutdown
    assert len(ledger.started) == begun
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
    later = Ledger(open=True)
    agent, model = later.make_agent()
    await SimulatedHost(host.inner).resume(agent, "r")
    assert sorted(ledger.started + later.started) == list(range(CALLS))
    shown = [message for message in model.requests[0] if isinstance(message, ToolResult)]
    assert [message.content for message in shown] == [f"booked {number}" for number in range(CALLS)]


async def test_after_a_crash_calls_that_an_earlier_process_did_not_start_are_in_doubt_too() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    ledger = Ledger()
    agent, _ = ledger.make_agent()
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    begun = await _fill_threads(ledger)
    shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
    await clock.advance(GRACE)
    ledger.let_go()
    await asyncio.wait([run, shutdown])
    second = SimulatedHost(host.inner)
    stuck = Ledger()
    agent, _ = stuck.make_agent()
    resumed = asyncio.create_task(second.resume(agent, "r"))
    await stuck.begun.wait()
    await second.crash()
    third = Ledger(open=True)
    agent, model = third.make_agent()
    await SimulatedHost(host.inner).resume(agent, "r")
    assert third.started == []
    shown = [message.content for message in model.requests[0] if isinstance(message, ToolResult)]
    assert shown.count(UNKNOWN_OUTCOME) == CALLS - begun
    stuck.let_go()
    await asyncio.wait([resumed])


def _join_tool_threads() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and "tool" in thread.name:
            thread.join(60)


async def test_calls_that_are_stopped_before_their_threads_start_return_their_slots() -> None:
    reserved = asyncio.Semaphore(0)

    class HoldingListener(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, ToolCalled) and info.run_id == "stopped":
                reserved.release()
                await asyncio.Event().wait()

    @tool(effect="pure")
    def look() -> str:
        return "seen"

    many = tool_reply(*(call(str(number), "look") for number in range(MAX_TOOL_THREADS)))
    filling = Agent(name="filling", model=ScriptedModel(many, "done"), tools=[look])
    looking = Agent(name="looking", model=ScriptedModel(tool_reply(call("1", "look")), "done"), tools=[look])
    async with App([filling, looking], MemoryStore(), listener=HoldingListener()) as app:
        running = asyncio.create_task(app.run(filling, "go", run_id="stopped"))
        for _ in range(MAX_TOOL_THREADS):
            await reserved.acquire()
        await app.cancel("stopped")
        with pytest.raises(RunCancelled):
            await running
        assert (await app.run(looking, "go")).output == "done"
