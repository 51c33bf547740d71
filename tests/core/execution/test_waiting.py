"""Runs that wait: for a message, a time, a signal, a person, a result from outside."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import (
    Agent,
    App,
    ApprovalRequest,
    Approve,
    Deferred,
    Deny,
    Reply,
    RunWaiting,
    ToolResult,
    User,
    Value,
    ask_person,
    current_call,
    sleep,
    tool,
    wait_for,
)
from holdfast.checkpoint.errors import RunEnded, RunNotFound
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import END, get_record
from holdfast.checkpoint.workers import Claim
from holdfast.config import CheckpointSettings
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import DefinitionError, PayloadError, SaveFailed
from holdfast.events import CallDecided
from holdfast.results import WaitingCall
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class Gate:
    """A model whose replies each wait until the gate is opened for them."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[Message, ...]] = []
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.requests.append(tuple(messages))
        self.reached.set()
        await self.open.wait()
        return self.replies.pop(0)


def results(model: Any) -> list[ToolResult]:
    """The tool results that the model saw last."""
    return [message for message in model.requests[-1] if isinstance(message, ToolResult)]


async def until_waiting(app: App, run_id: str) -> tuple[WaitingCall, ...]:
    with pytest.raises(RunWaiting) as raised:
        await app.result(run_id)
    return raised.value.calls


# -- messages -----------------------------------------------------------------------------------------------------


async def test_a_message_is_read_before_the_next_step(durable_store_url: str) -> None:
    model = Gate(Reply(text="first"), Reply(text="second"))
    agent = Agent(name="a", model=model)
    async with App([agent], durable_store_url) as app, App([agent], durable_store_url, worker=False) as other:
        run = asyncio.create_task(app.run("a", "go", run_id="r"))
        await model.reached.wait()
        for _ in range(2):
            assert await other.send("r", "and then?", id="m1") == "m1"
        model.open.set()
        assert (await run).output == "second"
        with pytest.raises(RunEnded):
            await other.send("r", "too late")
        assert await other.send("r", "and then?", id="m1") == "m1"
    assert model.requests[1][-1] == User("and then?")
    assert len(model.requests) == 2


async def test_a_message_to_a_queued_run_is_read_in_its_first_step() -> None:
    store, model = MemoryStore(), ScriptedModel("done")
    agent = Agent(name="a", model=model)
    async with App([agent], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        await app.send("r", "also this")
        assert (await app.run("a", "go", run_id="r")).output == "done"
    assert model.requests[0][-1] == User("also this")


async def test_bad_messages_are_refused() -> None:
    async with App([Agent(name="a", model=ScriptedModel("done"))], MemoryStore(), worker=False) as app:
        await app.submit("a", "go", run_id="r")
        with pytest.raises(RunNotFound):
            await app.send("unknown", "hello")
        with pytest.raises(DefinitionError, match="give text"):
            await app.send("r", 7)  # type: ignore[arg-type]
        with pytest.raises(PayloadError):
            await app.send("r", "half a pair \ud800")
        with pytest.raises(PayloadError, match="send at most"):
            await app.send("r", "x" * 5_000_000)
        with pytest.raises(DefinitionError):
            await app.send("r", "hello", id="")
        for refused in ("x" * 201, "answer:1", "turn:1", "ended:1"):
            with pytest.raises(DefinitionError, match="the id is"):
                await app.send("r", "hello", id=refused)
        for name in ("", "x" * 201, 7):
            with pytest.raises(DefinitionError, match="the name of the signal"):
                await app.signal("r", name, 1)  # type: ignore[arg-type]
        assert app.store is not None
        assert (await app.store.load("r", after=END)).mail == ()
        await app.send("r", "hello", id="x" * 200)
        await app.signal("r", "x" * 200, 1)
        assert len((await app.store.load("r", after=END)).mail) == 2


# -- time -----------------------------------------------------------------------------------------------------------


async def test_a_run_sleeps_without_an_owner_and_continues_by_itself(durable_store_url: str) -> None:
    model = ScriptedModel(tool_reply(call("1", "sleep", seconds=0.3)), "awake")
    async with App([Agent(name="a", model=model, tools=[sleep])], durable_store_url) as app:
        run = asyncio.create_task(app.run("a", "go", run_id="r"))
        statuses = set()
        while not run.done():
            assert app.store is not None
            try:
                record = await get_record(app.store, "r")
            except RunNotFound:
                continue
            statuses.add(record.status)
            assert record.status is not RunStatus.WAITING or record.wake_at is not None
        assert RunStatus.WAITING in statuses
        assert (await run).output == "awake"
    assert [result.content for result in results(model)] == ["The time has come."]


async def test_a_submitted_run_is_not_taken_before_its_time() -> None:
    now = datetime.now(UTC)
    async with App([Agent(name="a", model=ScriptedModel("done"))], MemoryStore()) as app:
        await app.submit("a", "go", run_id="later", not_before=now + timedelta(hours=1))
        await app.submit("a", "go", run_id="soon", not_before=now + timedelta(seconds=0.1))
        assert (await app.result("soon")).output == "done"
        assert (await app.get("later")).status is RunStatus.QUEUED
        with pytest.raises(DefinitionError, match="time zone"):
            await app.submit("a", "go", not_before=datetime.now())


# -- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
async def test_a_signal_is_the_result_of_the_wait(durable_store_url: str, early: bool) -> None:
    model = ScriptedModel(tool_reply(call("1", "wait_for", name="paid")), "thanks")
    agent = Agent(name="a", model=model, tools=[wait_for])
    async with App([agent], durable_store_url) as app, App([agent], durable_store_url, worker=False) as other:
        if early:
            await other.submit("a", "go", run_id="r")
            await other.signal("r", "paid", {"euro": 5}, id="s")
        else:
            await app.submit("a", "go", run_id="r")
            [waiting] = await until_waiting(app, "r")
            assert (waiting.kind, waiting.topic) == ("signal", "signal:paid")
            assert (await app.get("r")).description.startswith("waits for the signal paid, ")
            await other.signal("r", "another")
            assert (await app.get("r")).status is RunStatus.WAITING
            for _ in range(2):
                await other.signal("r", "paid", {"euro": 5}, id="s")
        assert await follow(app, "r") == "thanks"
    assert [result.content for result in results(model)] == [{"euro": 5}]


async def test_a_signal_that_is_read_while_another_one_is_being_saved_is_saved_after_it() -> None:
    saving, second_was_read = asyncio.Event(), asyncio.Event()

    class SlowStore(ProbeStore):
        async def append(self, claim: Claim, write: Append) -> None:
            if write.consumed and not saving.is_set():
                saving.set()
                await second_was_read.wait()
            await super().append(claim, write)

    @tool(effect="pure")
    async def wait_for_second() -> Any:
        await saving.wait()
        second_was_read.set()  # the write continues when this task waits for it
        return await wait_for.call({"name": "second"})

    model = ScriptedModel(tool_reply(call("1", "wait_for", name="first"), call("2", "wait_for_second")), "done")
    store = SlowStore(MemoryStore())
    async with App([Agent(name="a", model=model, tools=[wait_for, wait_for_second])], store, worker=False) as app:
        await app.submit("a", "go", run_id="r")
        for name in ("first", "second"):
            await app.signal("r", name, name)
        assert (await app.resume("r")).output == "done"
        assert (await store.inner.load("r", after=END)).mail == (), "each signal is consumed"
        decided = [event.call_id async for event in app.events("r") if isinstance(event, CallDecided)]
    assert (decided, [result.content for result in results(model)]) == (["1", "2"], ["first", "second"])


async def test_a_wait_for_a_signal_may_time_out() -> None:
    model = ScriptedModel(tool_reply(call("1", "wait_for", name="paid", timeout=0.05)), "never mind")
    async with App([Agent(name="a", model=model, tools=[wait_for])], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await follow(app, "r")
    [result] = results(model)
    assert result.error
    assert "No answer within" in result.content


# -- approvals ------------------------------------------------------------------------------------------------------


class Shop:
    """A tool that needs approval above 100, with a ledger of what was paid."""

    def __init__(self, expires_in: timedelta | None = None) -> None:
        self.paid: list[int] = []

        def needs(arguments: dict[str, Any]) -> bool | ApprovalRequest:
            if arguments["amount"] <= 100:
                return False
            return ApprovalRequest(reason="much money", expires_in=expires_in, audience="finance")

        @tool(approval=needs)
        async def pay(amount: int) -> str:
            self.paid.append(amount)
            return f"paid {amount}"

        self.tool = pay

    def agent(self, *amounts: int) -> Agent:
        calls = [call(str(number), "pay", amount=amount) for number, amount in enumerate(amounts)]
        self.model = ScriptedModel(tool_reply(*calls), "done")
        return Agent(name="a", model=self.model, tools=[self.tool])


async def follow(app: App, run_id: str) -> Any:
    """The output of a run that was answered."""
    while True:
        try:
            return (await app.result(run_id)).output
        except RunWaiting:
            assert app.store is not None
            await app.store.wait_for_change(timedelta(seconds=0.05))


async def test_an_approved_call_is_made_and_a_small_one_does_not_wait(durable_store_url: str) -> None:
    shop = Shop()
    async with App([shop.agent(50, 200)], durable_store_url) as app:
        with pytest.raises(RunWaiting, match="approval of pay") as raised:
            await app.run("a", "go", run_id="r")
        assert shop.paid == [50]
        [waiting] = raised.value.calls
        assert await app.pending() == [waiting]
        assert (waiting.tool, waiting.arguments, waiting.reason, waiting.audience) == (
            "pay",
            {"amount": 200},
            "much money",
            "finance",
        )
        assert await app.pending(tool="other") == []
        assert await app.pending(agent="a", older_than=timedelta(hours=1)) == []
        await app.answer("r", "1", Approve(), by="ann", digest=waiting.digest)
        assert await follow(app, "r") == "done"
        assert await app.pending() == []
    assert shop.paid == [50, 200]
    assert [result.content for result in results(shop.model)] == ["paid 50", "paid 200"]


@pytest.mark.parametrize(
    ("answer", "paid", "text"),
    [
        (Approve(arguments={"amount": 150}), [150], "paid 150"),
        (Deny(reason="too much"), [], "The call was denied: too much."),
        (Deny(), [], "The call was denied."),
    ],
)
async def test_a_person_may_edit_or_deny(answer: Approve | Deny, paid: list[int], text: str) -> None:
    shop = Shop()
    async with App([shop.agent(200)], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await app.answer("r", "0", answer)
        assert await follow(app, "r") == "done"
    assert shop.paid == paid
    assert text in results(shop.model)[0].content


async def test_the_call_has_the_arguments_that_a_person_has_edited() -> None:
    seen: list[Any] = []

    @tool(approval=True)
    async def pay(amount: int) -> str:
        seen.append(current_call().arguments)
        return f"paid {amount}"

    model = ScriptedModel(tool_reply(call("0", "pay", amount=200)), "done")
    async with App([Agent(name="a", model=model, tools=[pay])], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await app.answer("r", "0", Approve(arguments={"amount": 150}), by="ann")
        assert await follow(app, "r") == "done"
    assert seen == [{"amount": 150}]


async def test_in_a_batch_of_three_two_approved_calls_run_now_and_the_third_keeps_waiting() -> None:
    shop = Shop()
    async with App([shop.agent(200, 300, 400)], MemoryStore()) as app:
        with pytest.raises(RunWaiting) as raised:
            await app.run("a", "go", run_id="r")
        assert len(raised.value.calls) == 3
        assert app.store is not None
        for number in (0, 2):
            await app.answer("r", str(number), Approve())
            while (await app.get("r")).status is not RunStatus.WAITING or len(shop.paid) <= number / 2:
                await app.store.wait_for_change(timedelta(seconds=0.05))
        [left] = await until_waiting(app, "r")
        assert (left.call_id, sorted(shop.paid)) == ("1", [200, 400])
        await app.answer("r", "1", Approve())
        assert await follow(app, "r") == "done"
    assert sorted(shop.paid) == [200, 300, 400]


async def test_expiry_is_its_own_outcome() -> None:
    shop = Shop(expires_in=timedelta(seconds=0.05))
    async with App([shop.agent(200)], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await follow(app, "r")
        with pytest.raises((NotWaiting, RunEnded)):
            await app.answer("r", "0", Approve())
    assert shop.paid == []
    assert results(shop.model)[0].content.startswith("No answer within")


async def test_a_call_is_answered_once(durable_store_url: str) -> None:
    shop = Shop()
    agent = shop.agent(200)
    async with (
        App([agent], durable_store_url, worker=False) as one,
        App([agent], durable_store_url, worker=False) as two,
    ):
        with pytest.raises(RunWaiting):
            await one.run("a", "go", run_id="r")
        answers = await asyncio.gather(
            one.answer("r", "0", Approve(), by="ann"),
            two.answer("r", "0", Deny(reason="no"), by="bob"),
            return_exceptions=True,
        )
        [refused] = [each for each in answers if each is not None]
        assert isinstance(refused, AlreadyAnswered)
        assert refused.decision is not None
        assert f"{refused.decision.by} answered first" in str(refused)
        winner = refused.decision.kind
        assert (await two.resume("r")).output == "done"
    assert shop.paid == ([200] if winner == "approve" else [])


async def test_bad_answers_are_refused_and_nothing_is_consumed() -> None:
    shop = Shop()
    async with App([shop.agent(200)], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        for call_id, answer, error in [
            ("9", Approve(), NotWaiting),
            ("0", Value(1), DefinitionError),
            ("0", "yes", DefinitionError),
            ("0", Approve(arguments={"sum": 1}), DefinitionError),
            ("0", Approve(arguments={"amount": "much"}), DefinitionError),
        ]:
            with pytest.raises(error):
                await app.answer("r", call_id, answer)  # type: ignore[arg-type]
        with pytest.raises(NotWaiting, match="no longer waits"):
            await app.answer("r", "0", Approve(), digest="0" * 16)
        assert (await app.get("r")).status is RunStatus.WAITING
        await app.cancel("r")
        with pytest.raises(NotWaiting):
            await app.answer("r", "7", Approve())
        assert (await app.get("r")).status is RunStatus.CANCELLED


async def test_a_person_answers_a_question() -> None:
    model = ScriptedModel(tool_reply(call("1", "ask_person", question="Which?", options=["red", "blue"])), "thanks")
    async with App([Agent(name="a", model=model, tools=[ask_person])], MemoryStore()) as app:
        with pytest.raises(RunWaiting, match="Which"):
            await app.run("a", "go", run_id="r")
        [question] = await app.pending()
        assert question.arguments == {"question": "Which?", "options": ["red", "blue"]}
        await app.answer("r", "1", Value("red"), by="ann")
        assert await follow(app, "r") == "thanks"
    assert results(model)[0].content == "red"


# -- results from outside -------------------------------------------------------------------------------------------


async def test_a_deferred_call_gets_its_result_through_its_token() -> None:
    tokens: list[str] = []

    @tool
    async def render(scene: str) -> Deferred:
        tokens.append(current_call().completion_token)
        return Deferred(reason="rendering")

    model = ScriptedModel(tool_reply(call("1", "render", scene="sea")), "done")
    async with App([Agent(name="a", model=model, tools=[render])], MemoryStore()) as app:
        with pytest.raises(RunWaiting, match="result of render"):
            await app.run("a", "go", run_id="r")
        for forged in ("", "r", "r~", "r~guess", "unknown~" + tokens[0].partition("~")[2]):
            with pytest.raises(NotWaiting):
                await app.complete_call(forged, "forged")
        assert await app.pending() == []
        await app.complete_call(tokens[0], {"file": "sea.png"})
        assert await follow(app, "r") == "done"
        with pytest.raises(NotWaiting):
            await app.complete_call(tokens[0], "again")
    assert (len(tokens), results(model)[0].content) == (1, {"file": "sea.png"})


async def test_a_deferred_call_can_be_completed_as_soon_as_its_tool_has_returned() -> None:
    """Its token is known outside then, although the other calls of the batch continue."""
    tokens: list[str] = []
    clock, returned = ManualClock(), asyncio.Event()

    @tool
    async def render() -> Deferred:
        tokens.append(current_call().completion_token)
        returned.set()
        return Deferred(reason="rendering")

    @tool
    async def deliver() -> str:
        await returned.wait()
        await clock.advance(timedelta(0))  # the other call continues
        await app.complete_call(tokens[0], "sea.png")
        return "delivered"

    model = ScriptedModel(tool_reply(call("1", "render"), call("2", "deliver")), "done")
    agent = Agent(name="a", model=model, tools=[render, deliver])
    rarely = CheckpointSettings(save_interval=timedelta(hours=1))
    async with App([agent], MemoryStore(clock=clock), checkpoint=rarely, worker=False, clock=clock) as app:
        assert (await app.run("a", "go", run_id="r")).output == "done"
    assert [result.content for result in results(model)] == ["sea.png", "delivered"]


async def test_a_deferred_call_is_stored_before_the_others_of_its_batch_end() -> None:
    """A process that dies from now on must not find it in doubt: others know what it waits for."""
    clock, returned = ManualClock(), asyncio.Event()
    asked: list[str] = []

    @tool
    async def render() -> Deferred:
        returned.set()
        return Deferred(reason="rendering")

    @tool
    async def look() -> str:
        await returned.wait()
        await clock.advance(timedelta(0))  # the other call continues
        asked.extend(call.tool for call in await app.pending())
        return "seen"

    agent = Agent(
        name="a", model=ScriptedModel(tool_reply(call("1", "render"), call("2", "look"))), tools=[render, look]
    )
    rarely = CheckpointSettings(save_interval=timedelta(hours=1))
    async with App([agent], MemoryStore(clock=clock), checkpoint=rarely, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go")
    assert asked == ["render"]


async def test_a_run_whose_deferred_call_cannot_be_stored_is_interrupted() -> None:
    probe = ProbeStore(MemoryStore())

    @tool
    async def render() -> Deferred:
        probe.fail("append", OSError("the disk is full"))
        return Deferred(reason="rendering")

    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "render"))), tools=[render])
    async with App([agent], probe, checkpoint=CheckpointSettings(require_durability=False), worker=False) as app:
        with pytest.raises(SaveFailed, match="the disk is full"):
            await app.run("a", "go")


async def test_the_calls_of_a_parked_run_are_pending_and_can_be_answered(store_url: str) -> None:
    model = ScriptedModel(tool_reply(call("1", "ask_person", question="which?")), "done")
    async with App([Agent(name="a", model=model, tools=[ask_person])], store_url) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        assert app.store is not None
        claim = await app.store.claim("r", app._stored.checkpoints.worker_id, statuses=frozenset({RunStatus.WAITING}))
        await app.store.release(claim, Release(status=RunStatus.PARKED, reason="poison"))
        [question] = await app.pending()
        await app.answer("r", question.call_id, Value("this one"))
        assert await app.pending() == []
        await app.unpark("r")
        assert (await app.result("r")).output == "done"
    assert [each.content for each in model.requests[-1] if isinstance(each, ToolResult)] == ["this one"]
