"""A call that was started and whose result was never recorded: no silent double effect."""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.life import Life
from tests.script import Script, asks, call

from holdfast.checkpoint.errors import ClaimLost, StoreUnavailable
from holdfast.checkpoint.handle import HandleSettings
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.lifecycle import Status
from holdfast.run.agent import Agent
from holdfast.run.call import CallContext, current_call
from holdfast.run.drive import UNKNOWN_OUTCOME
from holdfast.run.effects import DID_NOT_HAPPEN, UNKNOWN, Happened, Verdict
from holdfast.run.errors import NotSaved, RunParked, Shutdown
from holdfast.run.message import ToolResult
from holdfast.run.tool import Tool
from holdfast.testing.clock import ManualClock

ASK = asks(call("1", "send", to="ann"))


class World:
    """What a tool does to the world, over several lives of its process."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.keys: list[str] = []

    def tool(self, dies: Life | None, **options: Any) -> Tool:
        async def send(to: str) -> str:
            self.keys.append(current_call().idempotency_key)
            if dies is not None:
                await dies.die()
                raise Shutdown("the process is gone")
            self.sent.append(to)
            return f"sent to {to}"

        return Tool(send, **options)


async def left_in_doubt(world: World, clock: ManualClock | None = None, **options: Any) -> Life:
    """A run whose process died within a call."""
    life = Life(clock=clock) if clock is not None else Life()
    with pytest.raises(Shutdown):
        await life.executor.run(
            Agent(name="a", model=Script(ASK, "never"), tools=[world.tool(life, **options)]), "go", run_id="r"
        )
    [record] = await life.records()
    assert record.interrupted
    return life


async def after(world: World, life: Life, **options: Any) -> ToolResult:
    """Resume the run; the result that the model is shown."""
    model = Script(ASK, "done")
    result = await Life(life.inner).resume(Agent(name="a", model=model, tools=[world.tool(None, **options)]), "r")
    assert result.output == "done"
    assert await life.records() == []
    [shown] = [message for message in model.asked[-1] if isinstance(message, ToolResult)]
    return shown


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
async def test_a_harmless_call_in_doubt_is_made_again_with_the_same_key(effect: str) -> None:
    world = World()
    life = await left_in_doubt(world, effect=effect)
    # A pure call may be started before its reply is durable: then the model is asked again, which is not repeated work
    # that was saved.
    shown = await after(world, life, effect=effect)
    assert (shown.content, world.sent) == ("sent to ann", ["ann"])
    assert len(set(world.keys)) == 1
    assert len(world.keys) == 2


async def test_a_once_call_is_durable_before_it_starts() -> None:
    life = Life()
    seen: list[list[EntryKind]] = []

    async def send(to: str) -> None:
        stored = await life.inner.load("r")
        seen.append([entry.kind for entry in stored.entries])
        assert b"send" in stored.entries[-1].body

    await life.executor.run(Agent(name="a", model=Script(ASK, "done"), tools=[Tool(send)]), "go", run_id="r")
    assert seen == [[EntryKind.BEGIN, EntryKind.MESSAGE, EntryKind.MESSAGE]]


async def test_a_once_call_in_doubt_is_told_to_the_model_and_never_made_again() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world))
    assert (shown.content, shown.error, world.sent) == (UNKNOWN_OUTCOME, True, [])
    assert "may or may not have taken effect" in shown.content


async def test_a_once_call_in_doubt_parks_the_run_if_the_tool_says_so() -> None:
    world = World()
    life = await left_in_doubt(world)
    agent = Agent(name="a", model=Script(ASK, "never"), tools=[world.tool(None, in_doubt="park")])
    with pytest.raises(RunParked, match="in doubt"):
        await Life(life.inner).resume(agent, "r")
    [record] = await life.records()
    assert record.status is Status.PARKED
    assert record.reason == "in doubt: call 1 of send may or may not have happened"
    assert world.sent == []


def _verdict(answer: Any) -> Callable[[CallContext], Awaitable[Any]]:
    async def reconcile(context: CallContext) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return reconcile


async def test_reconcile_is_asked_with_the_identity_of_the_call() -> None:
    world = World()
    life = await left_in_doubt(world)
    asked: list[CallContext] = []

    async def reconcile(context: CallContext) -> Verdict:
        asked.append(context)
        return DID_NOT_HAPPEN

    await after(world, life, reconcile=reconcile)
    [context] = asked
    assert (context.run_id, context.step, context.call_id, context.tool) == ("r", 1, "1", "send")
    assert context.arguments == {"to": "ann"}
    assert context.idempotency_key == world.keys[0] == world.keys[1]


async def test_a_call_that_did_not_happen_is_made_now() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world), reconcile=_verdict(DID_NOT_HAPPEN))
    assert (shown.content, shown.error, world.sent) == ("sent to ann", False, ["ann"])


async def test_a_call_that_happened_has_the_result_that_was_found() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world), reconcile=_verdict(Happened({"id": 7})))
    assert (shown.content, shown.error, world.sent) == ({"id": 7}, False, [])


async def test_a_call_that_happened_with_a_result_that_cannot_be_stored_is_not_made_again() -> None:
    world = World()
    shown = await after(world, await left_in_doubt(world), reconcile=_verdict(Happened(b"raw")))
    assert shown.error
    assert "has taken effect" in shown.content
    assert world.sent == []


@pytest.mark.parametrize("answer", [UNKNOWN, None, True, "happened", LookupError("api down")], ids=repr)
@pytest.mark.parametrize("policy", ["tell", "park"])
async def test_whatever_is_no_answer_leaves_the_call_in_doubt(
    answer: Any, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    life = await left_in_doubt(world)
    options = {"reconcile": _verdict(answer), "in_doubt": policy}
    if policy == "tell":
        assert (await after(world, life, **options)).content == UNKNOWN_OUTCOME
    else:
        with pytest.raises(RunParked):
            await after(world, life, **options)
        assert await life.statuses() == {"r": Status.PARKED}
    assert world.sent == []
    if isinstance(answer, Exception):
        assert "reconciling send failed: api down" in caplog.text
        assert any(record.levelno == logging.WARNING for record in caplog.records)


async def test_a_reconcile_that_says_the_host_shuts_down_leaves_the_run() -> None:
    world = World()
    life = await left_in_doubt(world)
    agent = Agent(name="a", model=Script(ASK, "never"), tools=[world.tool(None, reconcile=_verdict(Shutdown("now")))])
    with pytest.raises(Shutdown):
        await Life(life.inner).resume(agent, "r")
    assert await life.statuses() == {"r": Status.INTERRUPTED}


async def test_in_a_half_done_batch_only_the_calls_without_a_result_are_in_doubt() -> None:
    life = Life()
    sent: list[str] = []
    batch = asks(*(call(name, "send", to=name) for name in "abc"))

    async def send(to: str) -> str:
        if to == "b":
            await life.store.wrote(EntryKind.RESULT, 2)
            await life.die()
            raise Shutdown("the process is gone")
        sent.append(to)
        return f"sent to {to}"

    with pytest.raises(Shutdown):
        await life.executor.run(Agent(name="a", model=Script(batch), tools=[Tool(send)]), "go", run_id="r")
    asked: list[str] = []

    async def reconcile(context: CallContext) -> Verdict:
        asked.append(context.call_id)
        return UNKNOWN

    model = Script(batch, "done")
    await Life(life.inner).resume(Agent(name="a", model=model, tools=[Tool(send, reconcile=reconcile)]), "r")
    assert asked == ["b"]
    assert sorted(sent) == ["a", "c"]
    contents = [message.content for message in model.asked[0] if isinstance(message, ToolResult)]
    assert contents == ["sent to a", UNKNOWN_OUTCOME, "sent to c"]


async def test_a_doubt_that_was_settled_once_is_settled_for_good() -> None:
    """The second life tells the model and dies in the next call of the batch: the third does not ask again."""
    life = Life()
    batch = asks(call("a", "send", to="a"), call("b", "wait"))

    async def send(to: str) -> None:
        raise AssertionError("it was in doubt")

    async def dies(to: str = "") -> None:
        await life.die()
        raise Shutdown("the process is gone")

    with pytest.raises(Shutdown):
        await life.executor.run(
            Agent(name="a", model=Script(batch), tools=[Tool(dies, name="send"), Tool(dies, name="wait")]),
            "go",
            run_id="r",
        )
    second = Life(life.inner)
    asked: list[str] = []

    async def reconcile(context: CallContext) -> Verdict:
        asked.append(context.call_id)
        return UNKNOWN

    async def dies_again() -> None:
        await second.store.wrote(EntryKind.RESULT, 1)
        await second.die()
        raise Shutdown("the process is gone")

    tools = [Tool(send, reconcile=reconcile), Tool(dies_again, name="wait", effect="idempotent")]
    with pytest.raises(Shutdown):
        await second.resume(Agent(name="a", model=Script(batch), tools=tools), "r")

    async def waits() -> str:
        return "waited"

    model = Script(batch, "done")
    tools = [Tool(send, reconcile=reconcile), Tool(waits, name="wait", effect="idempotent")]
    await Life(life.inner).resume(Agent(name="a", model=model, tools=tools), "r")
    assert asked == ["a"]


async def test_a_call_in_doubt_is_not_made_by_a_worker_that_has_lost_the_run() -> None:
    world, clock = World(), ManualClock()
    life = await left_in_doubt(world, clock)
    second = Life(life.inner, clock=clock)

    async def reconcile(context: CallContext) -> Verdict:
        await clock.advance(timedelta(minutes=1))
        await life.inner.claim("r", "somebody else", steal=True)
        return DID_NOT_HAPPEN

    agent = Agent(name="a", model=Script(ASK, "never"), tools=[world.tool(None, reconcile=reconcile)])
    with pytest.raises(ClaimLost):
        await second.resume(agent, "r")
    assert world.sent == []
    assert await life.statuses() == {"r": Status.RUNNING}


async def test_a_claim_that_cannot_be_proven_interrupts_the_run_and_never_fails_it() -> None:
    world, clock = World(), ManualClock()
    life = await left_in_doubt(world, clock)
    second = Life(life.inner, clock=clock, settings=HandleSettings(patience=timedelta(0)))

    async def reconcile(context: CallContext) -> Verdict:
        await clock.advance(timedelta(minutes=1))
        second.store.fail("append", StoreUnavailable("no answer"))
        return DID_NOT_HAPPEN

    agent = Agent(name="a", model=Script(ASK, "never"), tools=[world.tool(None, reconcile=reconcile)])
    with pytest.raises(NotSaved, match="still ours"):
        await second.resume(agent, "r")
    assert world.sent == []
    assert await life.statuses() == {"r": Status.INTERRUPTED}


async def test_a_worker_that_has_lost_the_run_starts_no_further_once_tool() -> None:
    clock = ManualClock()
    life = Life(clock=clock)
    sent: list[str] = []

    async def send(to: str) -> None:
        if to == "first":
            await life.inner.claim("r", "somebody else", steal=True)
            await clock.advance(timedelta(minutes=1))
        sent.append(to)

    model = Script(asks(call("1", "send", to="first")), asks(call("2", "send", to="second")), "never")
    with pytest.raises(ClaimLost):
        await life.executor.run(Agent(name="a", model=model, tools=[Tool(send)]), "go", run_id="r")
    assert sent == ["first"]
