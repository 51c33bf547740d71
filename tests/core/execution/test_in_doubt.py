"""A call that was started and whose result was never recorded: no silent double effect."""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.core.null_listener import NullListener
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import App
from holdfast.checkpoint.errors import CheckpointError, ClaimLost, StoreUnavailable
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN, Completed, Reconciliation
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.errors import RunLost, RunParked, SaveFailed, Shutdown
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import ToolResult
from holdfast.core.run.run_events import CallDecided, Event, ToolCalled
from holdfast.testing.manual_clock import ManualClock

ASK = tool_reply(call("1", "send", to="ann"))


class World:
    """What a tool does to the world, over several processes."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.keys: list[str] = []

    def tool(self, dies: SimulatedHost | None, **options: Any) -> Tool:
        async def send(to: str) -> str:
            self.keys.append(current_call().idempotency_key)
            if dies is not None:
                await dies.crash()
                raise Shutdown("the process is gone")
            self.sent.append(to)
            return f"sent to {to}"

        return Tool(send, **options)


async def left_in_doubt(world: World, clock: ManualClock | None = None, **options: Any) -> SimulatedHost:
    """A run whose process died within a call."""
    host = SimulatedHost(clock=clock) if clock is not None else SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(host, **options)]), "go", run_id="r"
        )
    [record] = await host.list_records()
    assert record.is_interrupted
    return host


async def after(world: World, host: SimulatedHost, **options: Any) -> ToolResult:
    """Resume the run; the result that the model is shown."""
    model = ScriptedModel(ASK, "done")
    result = await SimulatedHost(host.inner).resume(
        Agent(name="a", model=model, tools=[world.tool(None, **options)]), "r"
    )
    assert result.output == "done"
    assert await host.list_records() == []
    [shown] = [message for message in model.requests[-1] if isinstance(message, ToolResult)]
    return shown


async def test_a_worker_that_has_lost_its_claim_does_not_reconcile() -> None:
    world, reconciled = World(), 0

    async def find(call: ToolContext) -> Reconciliation:
        nonlocal reconciled
        reconciled += 1
        return NOT_EXECUTED

    host = await left_in_doubt(world, reconcile=find)
    second = SimulatedHost(host.inner)
    agent = Agent(name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(None, reconcile=find)])
    resumption = await second.claim(agent, "r")
    await host.inner.claim("r", "another", steal=True)
    with pytest.raises(RunLost):
        await second.executor.resume(agent, resumption)
    assert (reconciled, world.sent) == (0, [])


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_harmless_call_in_doubt_is_repeated_with_the_same_key(effect: str) -> None:
    world = World()
    host = await left_in_doubt(world, effect=effect)
    # A pure call may be started before its reply is durable: then the model is called again, which is not repeated work
    # that was saved.
    shown = await after(world, host, effect=effect)
    assert (shown.content, world.sent) == ("sent to ann", ["ann"])
    assert len(set(world.keys)) == 1
    assert len(world.keys) == 2


async def test_a_once_call_is_durable_before_it_starts() -> None:
    host = SimulatedHost()
    seen: list[list[EntryKind]] = []

    async def send(to: str) -> None:
        stored = await host.inner.load("r")
        seen.append([entry.kind for entry in stored.entries])
        assert b"send" in stored.entries[-1].body

    await host.executor.run(Agent(name="a", model=ScriptedModel(ASK, "done"), tools=[Tool(send)]), "go", run_id="r")
    assert seen == [[EntryKind.BEGIN, EntryKind.MESSAGE, EntryKind.MESSAGE]]


async def test_a_once_call_in_doubt_is_reported_to_the_model_and_never_repeated() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world))
    assert (shown.content, shown.error, world.sent) == (UNKNOWN_OUTCOME, True, [])
    assert "may or may not have taken effect" in shown.content


async def test_a_once_call_in_doubt_parks_the_run_if_the_tool_says_so() -> None:
    world = World()
    host = await left_in_doubt(world)
    agent = Agent(name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(None, in_doubt="park")])
    with pytest.raises(RunParked, match="in doubt"):
        await SimulatedHost(host.inner).resume(agent, "r")
    [record] = await host.list_records()
    assert record.status is RunStatus.PARKED
    assert record.reason == "in doubt: call 1 of send may or may not have happened"
    assert world.sent == []


def _verdict(answer: Any) -> Callable[[ToolContext], Awaitable[Any]]:
    async def reconcile(context: ToolContext) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return reconcile


@pytest.mark.parametrize(
    ("given", "result", "made"),
    [
        ("sent by hand", "sent by hand", []),
        (NOT_EXECUTED, "sent to bob", ["bob"]),
        (UNKNOWN, UNKNOWN_OUTCOME, []),
    ],
)
async def test_a_person_resolves_the_calls_of_a_parked_run_without_a_result(
    given: Any, result: Any, made: list[str]
) -> None:
    sent: list[str] = []
    crashed: list[str] = []

    async def send(to: str) -> str:
        if to == "bob" and not crashed:
            crashed.append(to)
            await host.store.wait_for_entries(EntryKind.RESULT, 1)
            await host.crash()
            raise Shutdown("the process is gone")
        sent.append(to)
        return f"sent to {to}"

    model = ScriptedModel(tool_reply(call("1", "send", to="ann"), call("2", "send", to="bob")), "done")
    agent, host = Agent(name="a", model=model, tools=[Tool(send, in_doubt="park")]), SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id="r")
    async with App([agent], host.inner, worker=False) as app:
        with pytest.raises(RunParked, match="call 2 of send"):
            await app.resume("r")
        assert [pending.call_id for pending in (await app.get("r")).pending_calls] == ["2"]
        with pytest.raises(CheckpointError, match="no pending call has the id 1"):
            await app.unpark("r", {"1": "never sent"})
        await app.unpark("r", {"2": given}, by="eve", via="slack")
        assert (await app.resume("r")).output == "done"
        [decided] = [event async for event in app.events("r") if isinstance(event, CallDecided)]
    results = [message.content for message in model.requests[-1] if isinstance(message, ToolResult)]
    assert (results, sent) == (["sent to ann", result], ["ann", *made])
    assert (decided.call_id, decided.decision.by, decided.decision.via) == ("2", "eve", "slack")
    assert decided.decision.at is not None


async def test_reconcile_is_asked_with_the_identity_of_the_call() -> None:
    world = World()
    host = await left_in_doubt(world)
    asked: list[ToolContext] = []

    async def reconcile(context: ToolContext) -> Reconciliation:
        asked.append(context)
        return NOT_EXECUTED

    await after(world, host, reconcile=reconcile)
    [context] = asked
    assert (context.run_id, context.step, context.call_id, context.tool) == ("r", 1, "1", "send")
    assert context.arguments == {"to": "ann"}
    assert context.idempotency_key == world.keys[0] == world.keys[1]


async def test_a_call_that_did_not_happen_is_made_now() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world), reconcile=_verdict(NOT_EXECUTED))
    assert (shown.content, shown.error, world.sent) == ("sent to ann", False, ["ann"])


async def test_a_call_that_happened_has_the_result_that_was_found() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world), reconcile=_verdict(Completed({"id": 7})))
    assert (shown.content, shown.error, world.sent) == ({"id": 7}, False, [])


async def test_a_call_that_happened_with_a_result_that_cannot_be_stored_is_not_repeated() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world), reconcile=_verdict(Completed(b"raw")))
    assert shown.error
    assert "has taken effect" in shown.content
    assert world.sent == []


@pytest.mark.parametrize("answer", [UNKNOWN, None, True, "happened", LookupError("api down")], ids=repr)
@pytest.mark.parametrize("policy", ["report", "park"])
async def test_whatever_is_no_answer_leaves_the_call_in_doubt(
    answer: Any, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    host = await left_in_doubt(world)
    options = {"reconcile": _verdict(answer), "in_doubt": policy}
    if policy == "report":
        assert (await after(world, host, **options)).content == UNKNOWN_OUTCOME
    else:
        with pytest.raises(RunParked):
            await after(world, host, **options)
        assert await host.get_statuses() == {"r": RunStatus.PARKED}
    assert world.sent == []
    if isinstance(answer, Exception):
        assert "reconciling send failed: api down" in caplog.text
        assert any(record.levelno == logging.WARNING for record in caplog.records)


async def test_a_reconcile_that_says_the_host_shuts_down_leaves_the_run() -> None:
    world = World()
    host = await left_in_doubt(world)
    agent = Agent(
        name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(None, reconcile=_verdict(Shutdown("now")))]
    )
    with pytest.raises(Shutdown):
        await SimulatedHost(host.inner).resume(agent, "r")
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_in_a_half_done_batch_only_the_calls_without_a_result_are_in_doubt() -> None:
    host = SimulatedHost()
    sent: list[str] = []
    batch = tool_reply(*(call(name, "send", to=name) for name in "abc"))

    async def send(to: str) -> str:
        if to == "b":
            await host.store.wait_for_entries(EntryKind.RESULT, 2)
            await host.crash()
            raise Shutdown("the process is gone")
        sent.append(to)
        return f"sent to {to}"

    with pytest.raises(Shutdown):
        await host.executor.run(Agent(name="a", model=ScriptedModel(batch), tools=[Tool(send)]), "go", run_id="r")
    asked: list[str] = []

    async def reconcile(context: ToolContext) -> Reconciliation:
        asked.append(context.call_id)
        return UNKNOWN

    model = ScriptedModel(batch, "done")
    await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=[Tool(send, reconcile=reconcile)]), "r")
    assert asked == ["b"]
    assert sorted(sent) == ["a", "c"]
    contents = [message.content for message in model.requests[0] if isinstance(message, ToolResult)]
    assert contents == ["sent to a", UNKNOWN_OUTCOME, "sent to c"]


async def test_a_doubt_that_was_settled_once_is_settled_for_good() -> None:
    """The second host tells the model and dies in the next call of the batch: the third does not ask again."""
    host = SimulatedHost()
    batch = tool_reply(call("a", "send", to="a"), call("b", "wait"))

    async def send(to: str) -> None:
        raise AssertionError("it was in doubt")

    async def dies(to: str = "") -> None:
        await host.crash()
        raise Shutdown("the process is gone")

    with pytest.raises(Shutdown):
        await host.executor.run(
            Agent(name="a", model=ScriptedModel(batch), tools=[Tool(dies, name="send"), Tool(dies, name="wait")]),
            "go",
            run_id="r",
        )
    second = SimulatedHost(host.inner)
    asked: list[str] = []

    async def reconcile(context: ToolContext) -> Reconciliation:
        asked.append(context.call_id)
        return UNKNOWN

    async def dies_again() -> None:
        await second.store.wait_for_entries(EntryKind.RESULT, 1)
        await second.crash()
        raise Shutdown("the process is gone")

    tools: list[Tool] = [Tool(send, reconcile=reconcile), Tool(dies_again, name="wait", effect="idempotent")]
    with pytest.raises(Shutdown):
        await second.resume(Agent(name="a", model=ScriptedModel(batch), tools=tools), "r")

    async def waits() -> str:
        return "waited"

    model = ScriptedModel(batch, "done")
    tools = [Tool(send, reconcile=reconcile), Tool(waits, name="wait", effect="idempotent")]
    await SimulatedHost(host.inner).resume(Agent(name="a", model=model, tools=tools), "r")
    assert asked == ["a"]


async def test_a_call_in_doubt_is_not_made_by_a_worker_that_has_lost_the_run() -> None:
    world, clock = World(), ManualClock()
    host = await left_in_doubt(world, clock)
    second = SimulatedHost(host.inner, clock=clock)

    async def reconcile(context: ToolContext) -> Reconciliation:
        await clock.advance(timedelta(minutes=1))
        await host.inner.claim("r", "another worker", steal=True)
        return NOT_EXECUTED

    agent = Agent(name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(None, reconcile=reconcile)])
    with pytest.raises(ClaimLost):
        await second.resume(agent, "r")
    assert world.sent == []
    assert await host.get_statuses() == {"r": RunStatus.RUNNING}


async def test_a_claim_that_cannot_be_proven_interrupts_the_run_and_never_fails_it() -> None:
    world, clock = World(), ManualClock()
    host = await left_in_doubt(world, clock)
    second = SimulatedHost(host.inner, clock=clock, settings=CheckpointSettings(store_timeout=timedelta(0)))

    async def reconcile(context: ToolContext) -> Reconciliation:
        await clock.advance(timedelta(minutes=1))
        second.store.fail("append", StoreUnavailable("no answer"))
        return NOT_EXECUTED

    agent = Agent(name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(None, reconcile=reconcile)])
    with pytest.raises(SaveFailed, match="still owns it"):
        await second.resume(agent, "r")
    assert world.sent == []
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_a_worker_that_has_lost_the_run_starts_no_further_once_tool() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    sent: list[str] = []

    async def send(to: str) -> None:
        if to == "first":
            await host.inner.claim("r", "another worker", steal=True)
            await clock.advance(timedelta(minutes=1))
        sent.append(to)

    model = ScriptedModel(
        tool_reply(call("1", "send", to="first")), tool_reply(call("2", "send", to="second")), "never"
    )
    with pytest.raises(ClaimLost):
        await host.executor.run(Agent(name="a", model=model, tools=[Tool(send)]), "go", run_id="r")
    assert sent == ["first"]


async def test_a_once_tool_is_not_started_if_the_run_was_lost_while_a_listener_took_its_time() -> None:
    world, clock = World(), ManualClock()

    class SlowListener(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, ToolCalled):
                await clock.advance(timedelta(minutes=1))
                await host.inner.claim("r", "another worker", steal=True)

    host = SimulatedHost(clock=clock, ports=Ports(listener=SlowListener()))
    agent = Agent(name="a", model=ScriptedModel(ASK, "never"), tools=[world.tool(None)])
    with pytest.raises(ClaimLost):
        await host.executor.run(agent, "go", run_id="r")
    assert world.sent == []
