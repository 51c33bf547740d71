"""Every port is asked as promised, and one that raises never leaves the checkpoint unsettled."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.core.recording_ports import PortFailed, RecordingCritic, RecordingPorts
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import REMOVE_DONE, SimulatedHost

from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent, Bounds, Phase
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.errors import RunKilled, RunParked, RuntimeExceeded, Shutdown
from holdfast.core.execution.executor import Executor
from holdfast.core.observer import AttemptControl
from holdfast.core.ports import Ports
from holdfast.core.run.messages import Message, Reply, User
from holdfast.testing.manual_clock import ManualClock


@tool
async def work(fails: bool = False) -> str:
    if fails:
        raise ValueError("no")
    return "done"


def three_steps() -> Agent:
    return Agent(
        name="a",
        model=ScriptedModel(tool_reply(call("1", "work")), tool_reply(call("2", "extra")), "done"),
        tools=[work],
    )


async def test_every_port_is_asked_as_promised_over_a_whole_run() -> None:
    everything = RecordingPorts()
    await SimulatedHost(ports=everything.ports).executor.run(three_steps(), "go", run_id="r")
    assert everything.get_calls("audit") == [
        "audit.begin r",
        "audit.start new",
        "audit.tool work once fine",
        "audit.step 1 1",
        "audit.tool extra pure fine",
        "audit.step 2 2",
        "audit.step 3 3",
        "audit.close done 3 no error",
    ]
    assert everything.get_calls("budget") == [
        "budget.check 0",  # before the run
        "budget.check 0",
        "budget.commit 1 1",
        "budget.check 1",
        "budget.commit 2 2",
        "budget.check 2",
        "budget.commit 3 3",
        "budget.commit 3 3",  # at the end
    ]
    assert everything.get_calls("listener") == [
        "listener.event step_started 1",
        "listener.event reply 1",
        "listener.event tool_call 1 work",
        "listener.event tool_result 1 work",
        "listener.event step_started 2",
        "listener.event reply 2",
        "listener.event tool_call 2 extra",
        "listener.event tool_result 2 extra",
        "listener.event step_started 3",
        "listener.event reply 3",
        "listener.output done",
    ]
    assert everything.get_calls("extra_tools") == ["extra_tools.tools"]
    critic = everything.get_calls("critic")
    assert (critic[0], critic[-1]) == ("critic.begin", "critic.close")
    assert len(critic) == 2 + len(everything.get_calls("listener.event"))


async def test_a_failed_run_is_reported_to_every_port() -> None:
    everything = RecordingPorts()
    agent = Agent(
        name="a", model=ScriptedModel(tool_reply(call("1", "work", fails=True)), ValueError("broken")), tools=[work]
    )
    with fails_with(ValueError, match="broken"):
        await SimulatedHost(ports=everything.ports).executor.run(agent, "go")
    assert "audit.tool work once failed" in everything.calls
    assert everything.get_calls("audit")[-1] == "audit.close failed 1 ValueError"
    assert everything.get_calls("listener")[-1] == "listener.error ValueError"
    assert everything.get_calls("budget")[-1] == "budget.commit 1 1"
    assert everything.get_calls("listener.output") == []


async def test_what_was_spent_on_an_unfinished_step_is_committed_at_the_end() -> None:
    everything = RecordingPorts()

    @tool(on_error="raise")
    async def breaks() -> None:
        raise ValueError("no")

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "breaks"))), tools=[breaks])
    with pytest.raises(Exception, match="breaks"):
        await Executor(everything.ports).run(agent, "go")
    assert everything.get_calls("budget.commit") == ["budget.commit 0 1"]


async def test_a_resumed_run_says_so() -> None:
    first, second = RecordingPorts(), RecordingPorts()
    host = SimulatedHost(ports=first.ports)
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "work")), Shutdown("x")), tools=[work])
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id="r")
    assert first.get_calls("audit")[-1] == "audit.close interrupted 1 Shutdown"
    await SimulatedHost(host.inner, ports=second.ports).resume(three_steps(), "r")
    assert second.get_calls("audit")[:2] == ["audit.begin r", "audit.start resumed"]
    assert second.get_calls("listener")[0] == "listener.event status 1"
    assert second.get_calls("audit.step") == ["audit.step 2 2", "audit.step 3 3"]


async def test_a_steered_message_and_a_phase_are_events_for_the_listener() -> None:
    everything = RecordingPorts()
    executor = Executor(everything.ports)

    @tool(effect="pure")
    async def hint() -> None:
        execution = executor.get_attempt("r")
        assert execution is not None
        execution.nudge("mind the gap")

    phases = [Phase(name="one", model=ScriptedModel(tool_reply(call("1", "hint")), "x"), tools=[hint])]
    await executor.run(Agent(name="a", phases=phases), "go", run_id="r")
    assert "listener.event phase_started 0 one" in everything.calls
    assert "listener.event message 2" in everything.calls


# -- ports that raise -------------------------------------------------------------------------------------------------

#: Where a port can raise while the run executes: that becomes the run's error.
DURING = ["budget.check", "budget.commit", "listener.event", "listener.output", "extra_tools.tools"]

#: Where a port that only observes the run can raise: that is logged, and the run continues without it.
OBSERVING = ["audit.begin", "audit.start", "audit.step", "audit.tool", "critic.begin", "critic.activity"]

#: Where it can raise while the run is finalized: that is logged, and does not change the outcome.
AT_THE_END = ["audit.close", "critic.close", "listener.error"]


@pytest.mark.parametrize("where", DURING)
@pytest.mark.parametrize("resumed", [False, True])
async def test_a_port_that_raises_is_the_runs_error_and_the_checkpoint_is_finalized(where: str, resumed: bool) -> None:
    everything = RecordingPorts(where)
    host = SimulatedHost(ports=everything.ports, settings=CheckpointSettings(retention=REMOVE_DONE))
    if resumed:
        earlier = SimulatedHost(host.inner)
        agent = Agent(name="a", model=ScriptedModel(Shutdown("now")))
        with pytest.raises(Shutdown):
            await earlier.executor.run(agent, "go", run_id="r")
        with fails_with(PortFailed):
            await host.resume(three_steps(), "r")
    else:
        with fails_with(PortFailed):
            await host.executor.run(three_steps(), "go", run_id="r")
    statuses = await host.get_statuses()
    assert set(statuses.values()) <= {RunStatus.FAILED}
    assert bool(statuses) or not resumed
    assert host.executor.active_run_ids == frozenset()
    assert everything.get_calls("audit")[-1].startswith("audit.close failed")
    assert isinstance(everything.errors[0], PortFailed)


@pytest.mark.parametrize("where", OBSERVING)
@pytest.mark.parametrize("error", [None, RunParked("budget"), Shutdown("x")], ids=repr)
async def test_a_port_that_observes_and_raises_is_logged_and_changes_nothing(
    where: str, error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    everything = RecordingPorts(where) if error is None else RecordingPorts(where, lambda: error)
    host = SimulatedHost(ports=everything.ports, settings=CheckpointSettings())
    assert (await host.executor.run(three_steps(), "go", run_id="r")).output == "done"
    assert await host.get_statuses() == {"r": RunStatus.DONE}
    assert f"its observer Recording{where.partition('.')[0].title()}" in caplog.text


@pytest.mark.parametrize("where", AT_THE_END)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_port_that_raises_while_the_run_is_finalized_is_logged(
    where: str, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    everything = RecordingPorts(where)
    host = SimulatedHost(ports=everything.ports)
    if fails:
        with fails_with(ValueError, match="the run's own"):
            await host.executor.run(Agent(name="a", model=ScriptedModel(ValueError("the run's own"))), "go")
    else:
        assert (await host.executor.run(three_steps(), "go")).output == "done"
    if fails or where != "listener.error":
        assert "a port failed while the run was finalized" in caplog.text or "its observer Recording" in caplog.text
    assert await host.list_records() == []


@pytest.mark.parametrize("where", DURING)
async def test_a_port_can_park_or_leave_a_run_wherever_it_is_asked(where: str) -> None:
    for error, status in (
        (lambda: RunParked("budget"), RunStatus.PARKED),
        (lambda: Shutdown("x"), RunStatus.INTERRUPTED),
    ):
        host = SimulatedHost()
        agent = Agent(name="a", model=ScriptedModel(Shutdown("now")))
        with pytest.raises(Shutdown):
            await host.executor.run(agent, "go", run_id="r")
        with pytest.raises((RunParked, Shutdown)):
            await SimulatedHost(host.inner, ports=RecordingPorts(where, error).ports).resume(three_steps(), "r")
        assert await host.get_statuses() == {"r": status}

        new = SimulatedHost(ports=RecordingPorts(where, error).ports)
        with pytest.raises((RunParked, Shutdown)):
            await new.executor.run(three_steps(), "go", run_id="n")
        assert await new.get_statuses() == {"n": status}
        assert (
            await SimulatedHost(new.inner, ports=RecordingPorts().ports).resume(three_steps(), "n")
        ).output == "done"


async def test_an_extra_tool_with_a_taken_name_is_refused() -> None:
    @tool(effect="pure")
    async def extra() -> None: ...

    with pytest.raises(Exception, match="two tools are named 'extra'"):
        await Executor(RecordingPorts().ports).run(Agent(name="a", model=ScriptedModel("x"), tools=[extra]), "go")


# -- the critic -------------------------------------------------------------------------------------------------------


async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


async def test_with_a_critic_the_time_bound_is_its_soft_trigger_and_not_the_end() -> None:
    clock = ManualClock()
    everything = RecordingPorts()
    executor = Executor(Ports(critic=RecordingCritic(everything)), clock=clock)
    agent = Agent(name="a", model=hangs, bounds=Bounds(max_runtime=timedelta(minutes=1)))
    run = asyncio.create_task(executor.run(agent, "go"))
    await clock.advance(timedelta(minutes=5))
    assert not run.done()
    assert everything.limit == timedelta(minutes=1)
    assert everything.control is not None
    everything.control.kill("it hangs")
    with fails_with(RunKilled, match="it hangs"):
        await run


async def test_a_critic_that_does_not_watch_leaves_the_time_bound_as_the_end() -> None:
    class Blind:
        def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> None:
            return None

    clock = ManualClock()
    agent = Agent(name="a", model=hangs, bounds=Bounds(max_runtime=timedelta(minutes=1)))
    run = asyncio.create_task(Executor(Ports(critic=Blind()), clock=clock).run(agent, "go"))
    await clock.advance(timedelta(minutes=1))
    with fails_with(RuntimeExceeded):
        await run


async def test_a_kill_sticks_even_if_the_run_comes_to_an_answer() -> None:
    everything = RecordingPorts()
    host = SimulatedHost(ports=Ports(critic=RecordingCritic(everything)))

    async def stubborn(messages: Sequence[Message]) -> Reply:
        assert everything.control is not None
        everything.control.kill("enough")
        everything.control.kill("again")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Reply(text="done all the same")
        raise AssertionError

    with fails_with(RunKilled, match="enough"):
        await host.executor.run(Agent(name="a", model=ScriptedModel(stubborn)), "go")
    assert await host.list_records() == []


async def test_a_critic_can_steer_the_run() -> None:
    everything = RecordingPorts()

    async def first(messages: Sequence[Message]) -> Reply:
        assert everything.control is not None
        everything.control.nudge("hurry up")
        return tool_reply(call("1", "work"))

    model = ScriptedModel(first, "done")
    await Executor(Ports(critic=RecordingCritic(everything))).run(Agent(name="a", model=model, tools=[work]), "go")
    assert model.requests[1][-1] == User("hurry up")
