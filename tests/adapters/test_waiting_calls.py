"""Agents of pydantic-ai: approvals that holdfast asks for, holdfast tools that wait, and runs of older versions."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from tests.adapters.crash_simulator import RUN
from tests.adapters.scripted_model import ScriptedModel, call
from tests.adapters.test_approvals import answered, outcomes, returns, waiting
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel as NativeScript
from tests.scripted_model import call as native_call
from tests.scripted_model import tool_reply

from holdfast import Agent as NativeAgent
from holdfast import App, ApprovalRequest, Approve, Deferred, RunWaiting, Value, ask_person, current_call, sleep, tool
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.core.run.waiting import Answer
from holdfast.runtime.operations.mailing import NotWaiting
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


def spender(script: ScriptedModel, paid: list[int]) -> Agent[None, str]:
    agent = Agent(script.model, name="spender")

    @agent.tool_plain
    async def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    return agent


def above_100(arguments: dict[str, Any]) -> bool | ApprovalRequest:
    if arguments["amount"] <= 100:
        return False
    return ApprovalRequest(reason="much money", expires_in=timedelta(days=2), audience="finance")


async def test_durable_asks_for_approvals_of_tools_that_know_nothing_of_them() -> None:
    script = ScriptedModel([call("1", "pay", amount=50), call("2", "pay", amount=200)], "done")
    paid, store = list[int](), MemoryStore()
    agent = durable(spender(script, paid), tools={"pay": ToolPolicy(approval=above_100)})
    [asked] = await waiting(agent, store)
    assert (asked.reason, asked.audience, paid) == ("much money", "finance", [50])
    assert (await answered(agent, store, {"2": Approve(arguments={"amount": 150})})).output == "done"
    assert paid == [50, 150]


async def test_an_approval_that_is_not_given_in_time_is_no_denial() -> None:
    script, paid, clock = ScriptedModel([call("2", "pay", amount=200)], "done"), list[int](), ManualClock()
    store = MemoryStore(clock=clock)
    agent = durable(spender(script, paid), tools={"pay": ToolPolicy(approval=above_100)})
    await waiting(agent, store, clock=clock)
    await clock.advance(timedelta(days=2))
    async with App([agent], ProbeStore(store), worker=False, clock=clock) as app:
        with pytest.raises(NotWaiting, match="expired"):
            await app.answer(RUN, "2", Approve())
        assert (await app.resume(RUN)).output == "done"
    assert paid == []
    assert (returns(script), outcomes(script)) == (["No answer within 2 days."], ["failed"])


async def test_the_result_of_a_deferred_call_that_does_not_come_in_time_is_a_failure() -> None:
    script, clock = ScriptedModel([call("1", "render")], "done"), ManualClock()
    inner: Agent[None, Any] = Agent(script.model, name="painter")

    @inner.tool_plain
    async def render() -> Any:
        return Deferred(expires_in=timedelta(hours=1))

    store, agent = MemoryStore(clock=clock), durable(inner)
    await waiting(agent, store, clock=clock)
    await clock.advance(timedelta(hours=1))
    async with App([agent], ProbeStore(store), worker=False, clock=clock) as app:
        assert (await app.resume(RUN)).output == "done"
    assert (returns(script), outcomes(script)) == (["No answer within 1 hour."], ["failed"])


async def test_holdfast_tools_wait_in_the_run_of_another_loop() -> None:
    asked: list[str] = []

    @tool(approval=True)
    async def publish(text: str) -> str:
        asked.append(text)
        return "published"

    batch = [call("1", "publish", text="hi"), call("2", "ask_person", question="Which?"), call("3", "sleep", seconds=0)]
    script, store = ScriptedModel(batch, "done"), MemoryStore()
    agent = durable(Agent(script.model, name="editor"), extra_tools=[publish, ask_person, sleep])
    calls = await waiting(agent, store)
    assert sorted((each.call_id, each.kind) for each in calls) == [("1", "approval"), ("2", "question")]
    answers: dict[str, Answer] = {"1": Approve(arguments={"text": "hello"}), "2": Value("red")}
    assert (await answered(agent, store, answers)).output == "done"
    assert asked == ["hello"]
    assert returns(script) == ["published", "red", "The time has come."]


async def test_a_call_that_waits_for_its_child_does_not_stop_the_other_calls() -> None:
    script, done, store = (
        ScriptedModel([call("c1", "delegate"), call("c2", "look")], "thanks"),
        list[str](),
        MemoryStore(),
    )
    child = durable(
        Agent(ScriptedModel([call("k", "ask_person", question="Which?")], "blue").model, name="child"),
        extra_tools=[ask_person],
    )
    inner: Agent[None, str] = Agent(script.model, name="parent")
    looked = asyncio.Event()

    @inner.tool_plain
    async def delegate() -> str:
        done.append("delegate")
        return str((await current_call().run(child, "do it")).output)

    @inner.tool_plain
    async def look() -> str:
        while not any([record.status is RunStatus.WAITING async for record in iter_runs(store)]):
            await store.wait_for_change(timedelta(seconds=0.01))
        done.append("look")
        looked.set()
        return "seen"

    agent = durable(inner)
    async with App([agent, child], store, worker=False) as app:
        with pytest.raises(RunWaiting, match="child run of delegate"):
            await app.run(agent, "go", run_id=RUN)
        assert looked.is_set()
        [question] = await app.pending()
        await app.answer(question.run_id, "k", Value("blue"))
        assert (await app.resume(RUN)).output == "thanks"
    assert done == ["delegate", "look", "delegate"]
    assert returns(script) == ["blue", "seen"]


async def test_an_agent_of_the_native_loop_and_one_of_pydantic_ai_have_the_same_records() -> None:
    records = []
    script = ScriptedModel([call("2", "pay", amount=200)], "done")

    @tool(approval=above_100)
    async def pay(amount: int) -> str:
        return "paid"

    native = NativeAgent(name="n", model=NativeScript(tool_reply(native_call("2", "pay", amount=200))), tools=[pay])
    for agent in (native, durable(spender(script, []), tools={"pay": ToolPolicy(approval=above_100)})):
        [asked] = await waiting(agent, MemoryStore())
        records.append((asked.digest, asked.topic, asked.reason, asked.audience, asked.arguments, asked.kind))
    assert records[0] == records[1]
