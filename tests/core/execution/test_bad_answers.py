"""Answers that are refused, for both loops: a clear error, and nothing is consumed."""

from datetime import timedelta
from typing import Any

import pytest
from tests.core.execution.both_loops import Batch, Waiter
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Approve, Deny, RunWaiting, Value, ask_person, tool
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import END
from holdfast.clock import SYSTEM_CLOCK
from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.mailing import Mailer, NotWaiting
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

BATCH: Batch = [("1", "pay", {"amount": 200}), ("2", "ask_person", {"question": "Which?"}), ("3", "render", {})]
LARGE = "x" * 5_000_000

loops = pytest.mark.parametrize("loop", ["native", "pydantic_ai"])


async def refuse(app: App, error: type[HoldfastError], call_id: str, answer: Any, **options: Any) -> None:
    with pytest.raises(error):
        await app.answer("r", call_id, answer, **options)


@loops
async def test_a_bad_answer_is_refused_and_a_good_one_is_still_possible(loop: str) -> None:
    waiter = Waiter(loop, BATCH)
    async with App([waiter.agent], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting) as raised:
            await app.run("a", "go", run_id="r")
        shown = {call.call_id: call for call in raised.value.calls}
        await refuse(app, NotWaiting, "9", Approve())
        await refuse(app, NotWaiting, "1", Approve(), digest=shown["2"].digest)
        await refuse(app, DefinitionError, "1", Value(1))
        await refuse(app, DefinitionError, "2", Approve())
        await refuse(app, DefinitionError, "1", True)
        await refuse(app, DefinitionError, "1", Approve(arguments={"amount": LARGE}))
        with pytest.raises(DefinitionError, match="amount: is not of type integer"):
            await app.answer("r", "1", Approve(arguments={"amount": "much"}))
        await refuse(app, PayloadError, "2", Value(LARGE))
        await refuse(app, PayloadError, "2", Value(object()))
        with pytest.raises(RunNotFound):
            await app.answer("unknown", "1", Approve())
        [token] = waiter.tokens
        for forged in ("", "r", "r~", "r~guess", token[:-1], f"{token}x", f"other~{token.partition('~')[2]}"):
            with pytest.raises(NotWaiting):
                await app.complete_call(forged, "forged")
        with pytest.raises(PayloadError):
            await app.complete_call(token, LARGE)
        assert app.store is not None
        assert (await app.store.load("r", after=END)).mail == ()
        assert (await app.get("r")).status is RunStatus.WAITING
        assert waiter.paid == []

        await app.answer("r", "1", Approve(), digest=shown["1"].digest)
        await app.answer("r", "2", Value("red"))
        await app.complete_call(token, "sea.png")
        assert (await app.resume("r")).output == "done"
    assert sorted(waiter.results) == ["paid 200", "red", "sea.png"]
    assert waiter.paid == [200]


@loops
async def test_an_answer_after_the_expiry_is_refused_and_the_calls_say_so(loop: str) -> None:
    clock = ManualClock()
    waiter = Waiter(loop, [BATCH[0], BATCH[2]], expires_in=timedelta(hours=1))
    async with App([waiter.agent], MemoryStore(clock=clock), worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await clock.advance(timedelta(hours=1))
        await refuse(app, NotWaiting, "1", Approve())
        with pytest.raises(NotWaiting, match="expired"):
            await app.complete_call(waiter.tokens[0], "too late")
        assert app.store is not None
        assert (await app.store.load("r", after=END)).mail == ()
        assert (await app.resume("r")).output == "done"
        decisions = [call.decision.kind for call in (await app.get("r")).decided_calls if call.decision is not None]
        assert decisions == ["expire", "expire"]
    assert waiter.results == ["No answer within 1 hour."] * 2
    assert waiter.paid == []


@loops
async def test_a_call_whose_answer_is_read_while_calls_are_listed_is_not_listed(loop: str) -> None:
    waiter, store, reads = Waiter(loop, BATCH[:1]), MemoryStore(), list[str]()
    async with App([waiter.agent], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await app.answer("r", "1", Approve())
        assert await app.pending() == []

        async def read_before(method: str) -> None:
            if method == "get_record" and not reads:
                reads.append(method)
                assert (await app.resume("r")).output == "done"

        probe = ProbeStore(store, before=read_before)
        assert await Mailer(probe, clock=SYSTEM_CLOCK).list_pending() == []
    assert reads == ["get_record"]


@loops
async def test_a_late_answer_does_not_meet_a_later_call_with_the_same_id_and_arguments(loop: str) -> None:
    pay = ("1", "pay", {"amount": 200})
    waiter = Waiter(loop, [pay], [pay])
    async with App([waiter.agent], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        [first] = await app.pending()
        await app.answer("r", "1", Approve(), digest=first.digest)
        with pytest.raises(RunWaiting):
            await app.resume("r")
        [second] = await app.pending()
        assert (second.call_id, second.arguments) == (first.call_id, first.arguments)
        await refuse(app, NotWaiting, "1", Approve(), digest=first.digest)
        assert waiter.paid == [200]
        await app.answer("r", "1", Approve(), digest=second.digest)
        assert (await app.resume("r")).output == "done"
    assert waiter.paid == [200, 200]


async def test_a_late_denial_of_an_approval_does_not_meet_the_question_that_follows_it() -> None:
    @tool(approval=True)
    async def buy() -> Any:
        return await ask_person.call({"question": "Which?"})

    model = ScriptedModel(tool_reply(call("1", "buy")), "done")
    async with App([Agent(name="a", model=model, tools=[buy])], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        [approval] = await app.pending()
        await app.answer("r", "1", Approve(), digest=approval.digest)
        with pytest.raises(RunWaiting, match="Which"):
            await app.resume("r")
        await refuse(app, NotWaiting, "1", Deny(), digest=approval.digest)
        await app.answer("r", "1", Value("red"))
        assert (await app.resume("r")).output == "done"
