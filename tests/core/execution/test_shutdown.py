"""Shutting down: every run reaches its next step boundary, or is stopped within its step, and is left for recovery."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import Shutdown, ShuttingDown
from holdfast.core.execution.executor import Executor
from holdfast.core.run.messages import Message, Reply
from holdfast.testing.manual_clock import ManualClock

TIMEOUT = timedelta(seconds=30)


class Gate:
    """A model that waits at its n-th reply until it is let through."""

    def __init__(self, *turns: Reply, at: int = 0) -> None:
        self._turns, self._at = turns, at
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self.asked = 0

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        turn = sum(isinstance(message, Reply) for message in messages)
        self.asked += 1
        if turn == self._at:
            self.reached.set()
            await self.open.wait()
        return self._turns[turn]


@tool(effect="pure")
async def look() -> str:
    return "seen"


LOOK = tool_reply(call("1", "look"))


async def test_a_run_is_let_to_its_next_boundary_and_left_there() -> None:
    host = SimulatedHost(clock=ManualClock())
    gate = Gate(LOOK, Reply(text="never"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate, tools=[look]), "go", run_id="r"))
    await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await asyncio.sleep(0)
    assert not shutdown.done()
    gate.open.set()
    with pytest.raises(Shutdown, match="after step 1"):
        await run
    await shutdown
    assert gate.asked == 1
    assert host.store.at_close is not None
    [record] = host.store.at_close
    assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 0)
    model = ScriptedModel(LOOK, "done")
    result = await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[look]), "r")
    assert (result.output, len(model.requests)) == ("done", 1)


async def test_a_run_that_reaches_its_answer_within_the_grace_is_completed() -> None:
    host = SimulatedHost(clock=ManualClock())
    gate = Gate(Reply(text="done"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate), "go"))
    await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await asyncio.sleep(0)
    gate.open.set()
    assert (await run).output == "done"
    await shutdown
    assert host.store.at_close == []


async def test_when_the_grace_is_over_a_run_is_stopped_where_it_is() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    gate = Gate(LOOK, Reply(text="never"), at=1)
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate, tools=[look]), "go", run_id="r"))
    await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(TIMEOUT - timedelta(seconds=1))
    assert not run.done()
    await clock.advance(timedelta(seconds=1))
    with pytest.raises(Shutdown, match="within step 2"):
        await run
    await shutdown
    assert host.store.at_close is not None
    assert [record.status for record in host.store.at_close] == [RunStatus.INTERRUPTED]


async def test_without_grace_runs_are_stopped_at_once() -> None:
    host = SimulatedHost()
    gate = Gate(Reply(text="never"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate), "go", run_id="r"))
    await gate.reached.wait()
    await host.executor.shutdown(timedelta(0))
    with pytest.raises(Shutdown):
        await run
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_the_store_is_closed_last_when_all_is_flushed_and_all_claims_are_released() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock, settings=CheckpointSettings(save_interval=timedelta(hours=1)))
    gates = [Gate(LOOK, Reply(text="never"), at=1) for _ in range(3)]
    runs = [
        asyncio.create_task(host.executor.run(Agent(name="a", model=gate, tools=[look]), "go", run_id=f"r{number}"))
        for number, gate in enumerate(gates)
    ]
    for gate in gates:
        await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(TIMEOUT)
    await shutdown
    assert [type(error) for error in await asyncio.gather(*runs, return_exceptions=True)] == [Shutdown] * 3
    assert host.store.calls[-2:] == ["deregister_worker", "close"]
    assert host.store.at_close is not None
    assert {record.status for record in host.store.at_close} == {RunStatus.INTERRUPTED}
    for number in range(3):
        resumption = await SimulatedHost(host.inner, clock=clock).claim(
            Agent(name="a", model=ScriptedModel("x")), f"r{number}"
        )
        assert resumption.state.steps == 1, "the step that the throttle held back was flushed"


async def test_new_runs_are_refused_and_nothing_is_written_for_them() -> None:
    host = SimulatedHost(clock=ManualClock())
    gate = Gate(Reply(text="done"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate), "go"))
    await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await asyncio.sleep(0)
    assert host.executor.draining
    written = len(host.store.writes)
    with pytest.raises(ShuttingDown, match="shutting down"):
        await host.executor.run(Agent(name="b", model=ScriptedModel("never")), "go", run_id="late")
    assert len(host.store.writes) == written
    gate.open.set()
    await asyncio.gather(run, shutdown)
    with pytest.raises(ShuttingDown):
        await host.executor.run(Agent(name="b", model=ScriptedModel("never")), "go")


async def test_a_claimed_run_that_comes_too_late_is_given_back() -> None:
    first = SimulatedHost()
    with pytest.raises(Shutdown):
        await first.executor.run(Agent(name="a", model=ScriptedModel(Shutdown("now"))), "go", run_id="r")
    host = SimulatedHost(first.inner, clock=ManualClock())
    gate = Gate(Reply(text="done"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate), "go", run_id="other"))
    await gate.reached.wait()
    resumption = await host.claim(Agent(name="a", model=ScriptedModel("x")), "r")
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await host.executor.resume(Agent(name="a", model=ScriptedModel("x")), resumption)
    assert (await host.get_statuses())["r"] is RunStatus.INTERRUPTED
    gate.open.set()
    await asyncio.gather(run, shutdown)


async def test_a_second_call_waits_for_the_same_shutdown() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    gate = Gate(Reply(text="never"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate), "go"))
    await gate.reached.wait()
    first = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    second = asyncio.create_task(host.executor.shutdown(timedelta(days=1)))
    await clock.advance(timedelta(seconds=1))
    first.cancel()  # the caller may go away: the shutdown continues
    await clock.advance(TIMEOUT)
    await second
    with pytest.raises(Shutdown):
        await run
    await host.executor.shutdown()
    assert host.store.calls.count("close") == 1


async def test_a_shutdown_without_runs_or_ports_is_done_at_once() -> None:
    await Executor().shutdown()
    host = SimulatedHost()
    await host.checkpoints.open()
    await host.executor.shutdown()
    assert host.store.at_close == []


def parent_of(child: Agent) -> Agent:
    @tool(effect="idempotent")
    async def ask() -> str:
        result = await current_call().run(child, "sub")
        return str(result.output)

    return Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "ask")), "done"), tools=[ask])


@pytest.mark.parametrize("in_time", [True, False])
async def test_children_inside_parents_are_left_and_not_failed(in_time: bool) -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    gate = Gate(LOOK, Reply(text="never"))
    parent = parent_of(Agent(name="child", model=gate, tools=[look]))
    run = asyncio.create_task(host.executor.run(parent, "go", run_id="p"))
    await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(timedelta(0))
    if in_time:
        gate.open.set()
    else:
        await clock.advance(TIMEOUT)
    with pytest.raises(Shutdown):
        await run
    await shutdown
    assert len(await host.list_records()) == 2
    assert set((await host.get_statuses()).values()) == {RunStatus.INTERRUPTED}

    model = ScriptedModel(LOOK, "from the child")
    result = await SimulatedHost(host.inner).resume(parent_of(Agent(name="child", model=model, tools=[look])), "p")
    assert result.output == "done"
    assert len(model.requests) == (1 if in_time else 2)
    assert await host.list_records() == []


async def test_a_run_that_cannot_be_flushed_is_left_as_it_was_saved() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock, settings=CheckpointSettings(store_timeout=timedelta(0)))
    gate = Gate(LOOK, Reply(text="never"), at=1)
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate, tools=[look]), "go", run_id="r"))
    await gate.reached.wait()

    async def unreachable(method: str) -> None:
        if method in ("append", "release"):
            raise StoreUnavailable("no answer")

    host.store.before = unreachable
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(TIMEOUT)
    await shutdown
    with pytest.raises(Shutdown):
        await run
    # Not released, but its worker was deregistered: so the run counts as interrupted.
    [record] = await host.list_records()
    assert record.is_interrupted
    model = ScriptedModel(LOOK, "done")
    assert (await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[look]), "r")).output == "done"


async def test_a_caller_that_is_cancelled_while_the_host_shuts_down_does_not_end_the_run() -> None:
    """A second Ctrl-C cancels all that waits."""
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    gate = Gate(Reply(text="never"))
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=gate), "go", run_id="r"))
    await gate.reached.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(timedelta(0))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await clock.advance(TIMEOUT)
    await shutdown
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


@pytest.mark.parametrize("own_first", [True, False])
@pytest.mark.parametrize("in_tool", [True, False])
async def test_a_cancel_of_all_tasks_while_the_host_shuts_down_does_not_end_the_run(
    in_tool: bool, own_first: bool
) -> None:
    """As asyncio.run() does when a second Ctrl-C has ended the main task: in any order."""
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    begun = asyncio.Event()

    async def hang() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        return tool_reply(call("1", "hang")) if in_tool else Reply(text=await hang())

    run = asyncio.create_task(host.executor.run(Agent(name="a", model=model, tools=[tool(hang)]), "go", run_id="r"))
    await begun.wait()
    shutdown = asyncio.create_task(host.executor.shutdown(TIMEOUT))
    await clock.advance(timedelta(0))
    own = [task for task in asyncio.all_tasks() if task.get_name().endswith("run r")]
    for task in [*own, run] if own_first else [run, *own]:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await shutdown
    [record] = await host.list_records()
    assert record.status is RunStatus.INTERRUPTED
    # What was being done is not over: it is in doubt.
    assert {entry.kind for entry in (await host.inner.load("r")).entries} == {EntryKind.BEGIN, EntryKind.MESSAGE}
