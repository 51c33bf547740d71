"""An answer that was accepted counts, also if its wait expires, or its turn ends, before the run reads it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.core.execution.both_loops import Batch, Waiter
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import (
    Agent,
    App,
    ApprovalRequest,
    Approve,
    Deferred,
    Deny,
    RunWaiting,
    ToolResult,
    Value,
    ask_person,
    current_call,
    tool,
)
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Mail, Receipt, Release
from holdfast.checkpoint.store import END
from holdfast.checkpoint.workers import Claim
from holdfast.core.errors import TurnFailed
from holdfast.core.execution.turn_cycle import CLOSED_CALL
from holdfast.events import CallDecided
from holdfast.results import WaitingCall
from holdfast.runtime.operations.mailing import NotWaiting
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

HOUR = timedelta(hours=1)
loops = pytest.mark.parametrize("loop", ["native", "pydantic_ai"])


class RacingStore(ProbeStore):
    """Holds back an answer or a signal until the run is about to record that none has come in time."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.holds = False
        self.held, self._posted = asyncio.Event(), asyncio.Event()
        self._race = asyncio.Event()

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        is_raced = self.holds and mail.topic.startswith(("answer:", "signal:"))
        if is_raced:
            self.held.set()
            await self._race.wait()
        receipt = await super().post(run_id, mail)
        if is_raced:
            self._posted.set()
        return receipt

    async def _let_mail_pass(self) -> None:
        if self.holds:
            self._race.set()
            await self._posted.wait()

    async def append(self, claim: Claim, write: Append) -> None:
        if any(b'"kind":"expire"' in body for body in (write.progress, *(entry.body for entry in write.entries))):
            await self._let_mail_pass()
        await super().append(claim, write)

    async def release(self, claim: Claim, release: Release) -> None:
        if any(b'"status":"interrupted"' in entry.body for entry in release.entries):  # a turn ends
            await self._let_mail_pass()
        await super().release(claim, release)


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[RacingStore]:
    inner = store_from_url(store_url)
    yield RacingStore(inner)
    await inner.close()


async def race(store: RacingStore, send: Awaitable[Any]) -> asyncio.Task[Any]:
    """Start to send mail. It arrives when the run is about to record that it has not."""
    store.holds = True
    sending = asyncio.ensure_future(send)
    await store.held.wait()
    return sending


Send = Callable[[App, Waiter], Awaitable[Any]]

#: The call that waits, how it gets its mail, and the result that the model reads.
CASES: dict[str, tuple[Batch, Send, Any]] = {
    "approval": ([("1", "pay", {"amount": 200})], lambda app, waiter: app.answer("r", "1", Approve()), "paid 200"),
    "denial": (
        [("1", "pay", {"amount": 200})],
        lambda app, waiter: app.answer("r", "1", Deny(reason="no")),
        "The call was denied: no.",
    ),
    "result": ([("1", "render", {})], lambda app, waiter: app.complete_call(waiter.tokens[0], "sea.png"), "sea.png"),
    "signal": (
        [("1", "wait_for", {"name": "paid", "timeout": 3600})],
        lambda app, waiter: app.signal("r", "paid", {"euro": 5}),
        {"euro": 5},
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_mail_that_races_the_expiry_of_its_wait_counts(store: RacingStore, case: str) -> None:
    batch, send, expected = CASES[case]
    clock, waiter = ManualClock(), Waiter("native", batch, expires_in=HOUR)
    async with App([waiter.agent], store, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        sending = await race(store, send(app, waiter))
        await clock.advance(HOUR)
        assert (await app.resume("r")).output == "done"
        await sending
        assert app._executor is not None
        assert app._executor.metrics.get("a").attempts == {"waiting": 1, "done": 1}, "it reads the mail at once"
        assert (await store.load("r", after=END)).mail == ()
        decided = [event.decision.kind async for event in app.events("r") if isinstance(event, CallDecided)]
    assert waiter.results == [expected]
    assert len(decided) == 1
    assert decided != ["expire"]


@loops
async def test_only_the_wait_whose_answer_has_come_is_not_expired(store: RacingStore, loop: str) -> None:
    batch: Batch = [("1", "pay", {"amount": 200}), ("2", "pay", {"amount": 300}), ("3", "render", {})]
    clock, waiter = ManualClock(), Waiter(loop, batch, expires_in=HOUR)
    async with App([waiter.agent], store, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        sending = await race(store, app.answer("r", "2", Approve(), by="ann"))
        await clock.advance(HOUR)
        assert (await app.resume("r")).output == "done"
        await sending
        decided = {
            each.call_id: each.decision.kind for each in (await app.get("r")).decided_calls if each.decision is not None
        }
        events = [
            (event.call_id, event.decision.kind) async for event in app.events("r") if isinstance(event, CallDecided)
        ]
    assert waiter.paid == [300]
    assert decided == {"1": "expire", "2": "approve", "3": "expire"}
    assert sorted(events) == sorted(decided.items())


async def test_a_finished_call_stays_finished_when_an_answer_races_the_expiry_of_its_sibling(
    store: RacingStore,
) -> None:
    made: list[str] = []

    @tool
    async def book() -> str:
        made.append("booked")
        return "booked"

    @tool(approval=ApprovalRequest(expires_in=HOUR))
    async def pay() -> str:
        made.append("paid")
        return "paid"

    model = ScriptedModel(tool_reply(call("1", "book"), call("2", "pay")), "done")
    clock = ManualClock()
    async with App([Agent(name="a", model=model, tools=[book, pay])], store, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        sending = await race(store, app.answer("r", "2", Approve()))
        await clock.advance(HOUR)
        assert (await app.resume("r")).output == "done"
        await sending
    assert made == ["booked", "paid"]


@pytest.mark.parametrize("given", ["answer", "token"])
@pytest.mark.parametrize("later", [False, True], ids=["same step", "later step"])
async def test_mail_that_comes_after_the_expiry_of_its_wait_is_refused(given: str, later: bool) -> None:
    """The call waits when the caller looks, and has expired when the mail is posted. Another call still waits."""
    tokens: list[str] = []

    @tool(approval=ApprovalRequest(expires_in=HOUR))
    async def pay() -> str:
        raise AssertionError("it has expired")

    @tool
    async def render() -> Deferred:
        tokens.append(current_call().completion_token)
        return Deferred(expires_in=HOUR)

    expires, asks = call("1", "pay" if given == "answer" else "render"), call("2", "ask_person", question="?")
    steps = [tool_reply(expires), tool_reply(asks)] if later else [tool_reply(expires, asks)]
    agent = Agent(name="a", model=ScriptedModel(*steps, "done"), tools=[pay, render, ask_person])
    clock = ManualClock()
    store = ProbeStore(MemoryStore(clock=clock))
    async with App([agent], store, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")

        async def expire(method: str) -> None:
            if method == "post":
                store.before = None
                await clock.advance(HOUR)
                with pytest.raises(RunWaiting):
                    await app.resume("r")

        store.before = expire
        with pytest.raises(NotWaiting, match="the answer is not used"):
            await (app.answer("r", "1", Approve()) if given == "answer" else app.complete_call(tokens[0], "x"))
        await app.answer("r", "2", Value("yes"))
        assert (await app.resume("r")).output == "done"


# -- turns that are interrupted -----------------------------------------------------------------------------------


class Buyer:
    """A conversation whose first turn asks a person, and waits for an approval."""

    def __init__(self) -> None:
        @tool(approval=True)
        async def pay() -> str:
            raise AssertionError("its turn was interrupted")

        asks = tool_reply(call("1", "pay"), call("2", "ask_person", question="Which?"))
        self.model = ScriptedModel(asks, "all right")
        self.agent = Agent(name="a", model=self.model, tools=[pay, ask_person])

    def get_result(self, call_id: str) -> Any:
        [found] = [
            message.content
            for message in self.model.requests[-1]
            if isinstance(message, ToolResult) and message.call_id == call_id
        ]
        return found


async def list_waits(app: App) -> list[WaitingCall]:
    return sorted(await app.pending(), key=lambda call: call.call_id)


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize(
    ("call_id", "answer", "expected"),
    [
        ("1", Approve(), "This call was approved, but its turn was ended before it was made."),
        ("1", Deny(reason="no"), "The call was denied: no."),
        ("2", Value("red"), "red"),
    ],
)
async def test_an_answer_to_a_turn_that_is_interrupted_counts(
    store: RacingStore, call_id: str, answer: Approve | Deny | Value, expected: str, races: bool
) -> None:
    buyer = Buyer()
    async with App([buyer.agent], store, worker=False) as app:
        chat = app.conversation("a", "k")
        with pytest.raises(RunWaiting):
            await chat.send("buy", id="buy")
        run_id = (await list_waits(app))[0].run_id
        answering = app.answer(run_id, call_id, answer, by="ann")
        if races:
            sending = await race(store, answering)
        else:
            await answering
        assert (await chat.send("never mind", when="interrupt")).output == "all right"
        if races:
            await sending
        with pytest.raises(TurnFailed, match="interrupted"):
            await chat.send("buy", id="buy")
        assert (await store.load(run_id, after=END)).mail == ()
        await chat.close()
        decided = [
            (event.call_id, event.decision.kind, event.decision.by)
            async for event in app.events(run_id)
            if isinstance(event, CallDecided)
        ]
    other = "2" if call_id == "1" else "1"
    assert (buyer.get_result(call_id), buyer.get_result(other)) == (expected, CLOSED_CALL)
    kind = {Approve: "approve", Deny: "deny", Value: "value"}[type(answer)]
    assert sorted(decided) == sorted([(call_id, kind, "ann"), (other, "expire", "")])
