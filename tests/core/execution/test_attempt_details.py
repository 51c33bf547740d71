"""Details of attempts: closed ports, agents by name, times of steps, cancelled steps, and children that stop."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Bounds, ToolResult, current_call, tool
from holdfast.checkpoint.codec import Step, decode, decode_run
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import DefinitionError, MissingDefinition, RuntimeExceeded, Shutdown
from holdfast.core.observer import AttemptControl
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC
from holdfast.core.run.state import StepTimes
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.workflows import workflow

KEPT = CheckpointSettings()
MINUTE = timedelta(minutes=1)


class ClosingObservers:
    """Observes nothing, and remembers what the store was asked when it was closed."""

    def __init__(self) -> None:
        self.host: SimulatedHost | None = None
        self.calls_at_close: list[str] = []

    def begin(self, attempt: AttemptControl) -> None:
        return None

    async def close(self) -> None:
        assert self.host is not None
        self.calls_at_close = list(self.host.store.calls)


async def test_a_shutdown_closes_observers_before_the_store() -> None:
    observers = ClosingObservers()
    host = observers.host = SimulatedHost(ports=Ports(observers=(observers,)))
    await host.executor.run(Agent(name="a", model=ScriptedModel("done")), "go")
    assert observers.calls_at_close == []
    await host.executor.shutdown()
    assert "create" in observers.calls_at_close
    assert "close" not in observers.calls_at_close
    assert host.store.calls[-1] == "close"


async def test_a_child_is_named_or_the_known_agents_are_listed() -> None:
    @tool(effect="idempotent")
    async def ask(name: str) -> str:
        return str((await current_call().run(name, "sub")).output)

    helper = Agent(name="helper", model=ScriptedModel("helped"))
    asks = tool_reply(call("1", "ask", name="helper"), call("2", "ask", name="stranger"))
    main = Agent(name="main", model=ScriptedModel(asks, "done"), tools=[ask])
    async with App([main, helper], "memory:") as app:
        result = await app.run("main", "go")
    contents = [message.content for message in result.messages if isinstance(message, ToolResult)]
    assert contents[0] == "helped"
    assert "no agent 'stranger'; known: helper, main" in contents[1]


async def test_the_times_of_a_step_of_a_workflow_are_those_of_its_call() -> None:
    clock = ManualClock()
    host = SimulatedHost(settings=KEPT, clock=clock)

    @tool(effect="pure")
    async def work() -> None:
        await clock.advance(timedelta(seconds=5))

    @workflow
    async def flow() -> None:
        await work()

    await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    entries = (await host.inner.load("r")).entries
    [step] = [decode(entry.body, Step) for entry in entries if entry.kind is EntryKind.STEP]
    assert step.times is not None
    [measured] = step.times.calls
    assert (step.times, measured.start, measured.end) == (StepTimes(5000, 0, (measured,)), 0, 5000)


async def test_a_step_that_the_code_cancels_is_saved_before_the_code_continues() -> None:
    host = SimulatedHost(settings=KEPT)
    began, saved = asyncio.Event(), asyncio.Event()
    results: list[Any] = []

    @tool(effect="pure")
    async def forever() -> None:
        began.set()
        await asyncio.Event().wait()

    @workflow
    async def flow() -> None:
        step = asyncio.create_task(forever())
        await began.wait()
        step.cancel()
        await asyncio.wait([step])
        stored = decode_run(await host.inner.load("r"), NATIVE_CODEC)
        results.extend(message for message in stored.state.history if isinstance(message, ToolResult))
        saved.set()

    await host.executor.start(flow, RunInfo.create(flow, "", run_id="r"))
    assert saved.is_set()
    assert [result.tool for result in results] == ["forever"]
    assert results[0].error


class LateSource:
    """An agent that can be built the second time."""

    name = "a"

    def __init__(self, agent: Agent) -> None:
        self._agent, self.builds = agent, 0

    async def build(self, info: RunInfo) -> Agent:
        self.builds += 1
        if self.builds == 1:
            raise DefinitionError("not yet")
        return self._agent


async def test_an_agent_that_can_be_built_again_has_no_failures() -> None:
    host = SimulatedHost(settings=KEPT)
    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=ScriptedModel(Shutdown("down"))), "go", run_id="r")
    source: AgentSource = LateSource(Agent(name="a", model=ScriptedModel(Shutdown("down"))))
    for failures, error in ((1, MissingDefinition), (0, Shutdown)):
        with pytest.raises(error):
            await SimulatedHost(host.inner, settings=KEPT).resume(source, "r")
        [record] = await host.list_records()
        assert decode(record.progress, Progress).faults.build_failures == failures


@pytest.mark.parametrize("count", [2, 3])
async def test_two_calls_of_a_sequential_tool_are_enough_for_an_order(count: int) -> None:
    seen: list[str] = []

    @tool(effect="pure", sequential=True)
    async def act(name: str) -> None:
        seen.append(f"{name} begins")
        await asyncio.sleep(0)
        seen.append(f"{name} ends")

    names = "abc"[:count]
    batch = tool_reply(*(call(name, "act", name=name) for name in names))
    async with App([Agent(name="a", model=ScriptedModel(batch, "done"), tools=[act])], None) as app:
        await app.run("a", "go")
    assert seen == [f"{name} {what}" for name in names for what in ("begins", "ends")]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_child_is_cancelled_if_its_parent_fails_and_resumable_if_its_parent_is(is_killed: bool) -> None:
    clock = ManualClock()
    host, started = SimulatedHost(settings=KEPT, clock=clock), asyncio.Event()

    async def wait_forever(messages: Any, tools: Any) -> Any:
        started.set()
        await asyncio.Event().wait()

    child = Agent(name="child", model=wait_forever)

    @tool(effect="idempotent")
    async def ask() -> None:
        await current_call().run(child, "sub")

    asks = tool_reply(call("1", "ask"))
    parent = Agent(name="a", model=ScriptedModel(asks), tools=[ask], bounds=Bounds(max_runtime=MINUTE))
    running = asyncio.create_task(host.executor.run(parent, "go", run_id="r"))
    await started.wait()
    if is_killed:
        await clock.advance(MINUTE)
        with fails_with(RuntimeExceeded):
            await running
    else:
        attempt = host.executor.get_attempt("r")
        assert attempt is not None
        attempt.stop_for_shutdown()
        with pytest.raises(Shutdown):
            await running
    statuses = await host.get_statuses()
    assert statuses.pop("r") is (RunStatus.FAILED if is_killed else RunStatus.INTERRUPTED)
    assert list(statuses.values()) == [RunStatus.CANCELLED if is_killed else RunStatus.INTERRUPTED]


async def test_a_store_in_memory_runs_no_transaction() -> None:
    @tool(effect="transaction")
    async def book(connection: Any) -> None: ...

    async with App([Agent(name="a", model=ScriptedModel("done"), tools=[book])], MemoryStore()) as app:
        with fails_with(DefinitionError, match="tool book: effect is transaction, and the store of the run has no"):
            await app.run("a", "go")
