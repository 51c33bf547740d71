"""Tools that run in threads, which cannot be stopped midway."""

import asyncio
import threading
from datetime import timedelta

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import Tool, tool
from holdfast.core.errors import RunKilled, Shutdown
from holdfast.core.run.messages import ToolResult
from holdfast.testing.manual_clock import ManualClock

GRACE = timedelta(seconds=30)


@tool(effect="pure")
async def look() -> str:
    return "seen"


class Thread:
    """A tool that runs in a thread until it is let go."""

    def __init__(self, effect: str = "once") -> None:
        self._loop = asyncio.get_running_loop()
        self.begun, self.go_on = asyncio.Event(), threading.Event()
        self.done: list[str] = []
        self.fails = False
        self.tool = Tool(self._send, name="send", effect=effect)

    def _send(self) -> str:
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.go_on.wait(60)
        self.done.append("sent")
        if self.fails:
            raise ValueError("sent, but")
        return "sent"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("alone", [False, True])
async def test_a_run_is_not_left_to_others_while_a_thread_of_it_still_works(alone: bool, fails: bool) -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    thread = Thread()
    thread.fails = fails
    batch = tool_reply(call("1", "send")) if alone else tool_reply(call("1", "send"), call("2", "look"))
    agent = Agent(name="a", model=ScriptedModel(batch, "done"), tools=[thread.tool, look])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await thread.begun.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
    await clock.advance(GRACE)
    execution = host.executor.get_attempt("r")
    assert execution is not None
    assert isinstance(execution.stop_state.error, Shutdown)
    assert await host.get_statuses() == {"r": RunStatus.RUNNING}
    thread.go_on.set()
    with pytest.raises(Shutdown):
        await run
    await shutdown
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
    model = ScriptedModel(batch, "done")
    await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[thread.tool, look]), "r")
    assert thread.done == ["sent"]
    shown = next(message for message in model.requests[0] if isinstance(message, ToolResult))
    assert (shown.content, shown.error) == (("ValueError: sent, but", True) if fails else ("sent", False))


async def test_a_run_that_is_ended_does_not_wait_for_its_threads() -> None:
    host = SimulatedHost()
    thread = Thread()
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "send"))), tools=[thread.tool])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await thread.begun.wait()
    execution = host.executor.get_attempt("r")
    assert execution is not None
    execution.kill("it hangs")
    with fails_with(RunKilled):
        await run
    assert thread.done == []
    assert await host.list_records() == []
    thread.go_on.set()


async def test_a_tool_that_raises_stop_iteration_reports_it_to_the_model() -> None:
    def take() -> str:
        return next(iter(()))

    model = ScriptedModel(tool_reply(call("1", "take")), "done")
    agent = Agent(name="a", model=model, tools=[Tool(take)])
    async with asyncio.timeout(60):
        assert (await SimulatedHost().executor.run(agent, "go")).output == "done"
    shown = model.requests[1][-1]
    assert isinstance(shown, ToolResult)
    assert (shown.content, shown.error) == ("RuntimeError: the tool raised StopIteration", True)


async def test_a_shutdown_names_the_tools_that_block_it_and_then_abandons_their_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    thread = Thread()
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "send"))), tools=[thread.tool])
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await thread.begun.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(GRACE))
    await clock.advance(GRACE)
    assert "run r, tool send, call 1" in caplog.text
    assert not shutdown.done()
    await clock.advance(timedelta(seconds=10))
    await shutdown
    with pytest.raises(Shutdown):
        await run
    # Its owner counts as alive: no other worker makes the call again while the thread works.
    [record] = await host.list_records()
    assert (record.status, record.owner_alive) == (RunStatus.RUNNING, True)
    assert "release" not in host.store.calls
    thread.go_on.set()
