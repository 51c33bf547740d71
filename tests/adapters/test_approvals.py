"""Calls that wait for a person: the run is parked, answered once, and goes on in whichever process."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import UserError
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from tests.adapters.crash_simulator import RUN, CrashSimulator
from tests.adapters.scripted_model import ScriptedModel, call, get_texts
from tests.probe_store import ProbeStore

from holdfast import App
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.errors import CheckpointError, RunBusy, RunNotClaimable
from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import RunParked
from holdfast.stores.memory import MemoryStore

BATCH = [call("c1", "look"), call("c2", "delete", path="a"), call("c3", "transfer", amount=7), call("c4", "survey")]


def careful(script: ScriptedModel, done: list[str], deaths: CrashSimulator | None = None) -> Agent[None, Any]:
    """An agent with calls that need approval always, or sometimes, and one that somebody else makes."""
    survey = ToolDefinition(name="survey", parameters_json_schema={"type": "object", "properties": {}})
    agent: Agent[None, Any] = Agent(
        script.model, name="careful", output_type=[str, DeferredToolRequests], toolsets=[ExternalToolset([survey])]
    )

    @agent.tool_plain
    def look() -> str:
        done.append("look")
        return "seen"

    @agent.tool_plain(requires_approval=True)
    async def delete(path: str) -> str:
        done.append(f"delete {path}")
        if deaths is not None:
            await deaths.reach("delete")
        return f"deleted {path}"

    @agent.tool
    def transfer(ctx: RunContext[None], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"amount": amount})
        done.append(f"transfer {amount} {ctx.tool_call_metadata}")
        return f"transferred {amount}"

    return agent


async def parked(agent: Any, store: MemoryStore) -> str:
    """Run the agent until it is parked; the reason."""
    async with App([agent], ProbeStore(store), worker=False) as app:
        with pytest.raises(RunParked) as stopped:
            await app.run(agent, "go", run_id=RUN)
    assert stopped.value.reason == "approval"
    return stopped.value.detail


async def answered(agent: Any, store: MemoryStore, answers: dict[str, Any]) -> Any:
    """Answer in one process, and go on in another."""
    async with App([agent], ProbeStore(store), worker=False) as app:
        await app.unpark(RUN, answers)
    async with App([agent], ProbeStore(store), worker=False) as app:
        return await app.resume(RUN)


def returns(script: ScriptedModel) -> list[Any]:
    return [content for kind, content in get_texts(script.asked[-1]) if kind == "tool-return"]


async def test_the_run_is_parked_and_goes_on_with_the_answers() -> None:
    script, done, store = ScriptedModel(BATCH, "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    assert await parked(agent, store) == "delete c2, transfer c3, survey c4"
    assert done == ["look"]
    result = await answered(agent, store, {"c2": True, "c3": ToolApproved(), "c4": {"people": 12}})
    assert result.output == "done"
    assert sorted(done) == ["delete a", "look", "transfer 7 {'amount': 7}"]
    assert returns(script) == ["seen", "deleted a", "transferred 7", {"people": 12}]
    assert (len(script.asked), result.steps, result.usage.tool_calls) == (2, 2, 3)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (False, "The tool call was denied."),
        (ToolDenied("not that one"), "not that one"),
        ({"kind": "tool-denied", "message": "never"}, "never"),
        ("I would rather not", "I would rather not"),
        ({}, "The tool call was denied."),
        (1, "The tool call was denied."),
    ],
)
async def test_only_a_clear_yes_is_an_approval(answer: Any, text: str) -> None:
    script, done, store = ScriptedModel([call("c2", "delete", path="a")], "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    await parked(agent, store)
    await answered(agent, store, {"c2": answer})
    assert done == []
    assert returns(script) == [text]


async def test_an_approval_may_change_the_arguments() -> None:
    script, done, store = ScriptedModel([call("c2", "delete", path="a")], "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    await parked(agent, store)
    await answered(agent, store, {"c2": {"kind": "tool-approved", "override_args": {"path": "b"}}})
    assert done == ["delete b"]


async def test_what_is_not_answered_is_parked_again() -> None:
    script, done, store = ScriptedModel(BATCH, "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    await parked(agent, store)
    with pytest.raises(RunParked, match="transfer c3, survey c4"):
        await answered(agent, store, {"c2": True})
    with pytest.raises(RunParked, match="transfer c3, survey c4"):
        await answered(agent, store, {})
    assert (await answered(agent, store, {"c3": False, "c4": "none"})).output == "done"
    assert done == ["look", "delete a"]


async def test_answers_are_taken_once() -> None:
    script, done, store = ScriptedModel([call("c2", "delete", path="a")], "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    await parked(agent, store)
    async with App([agent], ProbeStore(store), worker=False) as app:
        with pytest.raises(CheckpointError, match="c9"):
            await app.unpark(RUN, {"c9": True})
        taken = await asyncio.gather(*(app.unpark(RUN, {"c2": True}) for _ in range(5)), return_exceptions=True)
        refused = [each for each in taken if each is not None]
        assert len(refused) == 4
        assert all(isinstance(each, RunNotClaimable | RunBusy) for each in refused)  # it is taken, or is being taken
        await asyncio.gather(*(app.recover() for _ in range(3)))
    assert done == ["delete a"]
    assert len(script.asked) == 2


async def test_an_approved_call_in_doubt_is_not_made_again() -> None:
    """It dies within the approved call, and must not take the approval for a second one."""
    deaths, store, done = CrashSimulator("delete"), MemoryStore(), list[str]()
    script = ScriptedModel([call("c2", "delete", path="a")], "done")
    agent = durable(careful(script, done, deaths))
    await parked(agent, store)
    async with App([agent], ProbeStore(store), worker=False) as app:
        await app.unpark(RUN, {"c2": True})
    result = await deaths.resume(agent, store=store)
    assert result.output == "done"
    assert done == ["delete a"]
    assert "Unknown outcome" in returns(script)[0]


async def test_a_call_that_its_tool_deferred_is_answered_and_not_made_again() -> None:
    store, done = MemoryStore(), list[str]()
    script = ScriptedModel([call("c1", "look"), call("c2", "peek"), call("c3", "transfer", amount=7)], "done")
    inner = careful(script, done)

    @inner.tool_plain(sequential=True)
    async def peek() -> str:
        done.append("peek")
        raise CallDeferred

    agent = durable(inner)
    assert await parked(agent, store) == "peek c2, transfer c3"
    assert (await answered(agent, store, {"c2": "peeked", "c3": True})).output == "done"
    assert done == ["look", "peek", "transfer 7 {'amount': 7}"]
    assert returns(script) == ["seen", "peeked", "transferred 7"]


async def test_a_handler_of_the_agents_own_answers_at_once() -> None:
    script, done = ScriptedModel(BATCH[:3], "done"), list[str]()
    agent = careful(script, done)

    async def approve(ctx: RunContext[None], requests: DeferredToolRequests) -> DeferredToolResults:
        return requests.build_results(approve_all=True)

    handled = Agent(
        script.model, name="careful", toolsets=agent.toolsets, capabilities=[HandleDeferredToolCalls(approve)]
    )
    async with App([durable(handled)], "memory:") as app:
        assert (await app.run("careful", "go")).output == "done"
    assert returns(script) == ["seen", "deleted a", "transferred 7"]


async def test_without_a_place_for_requests_pydantic_ai_says_so() -> None:
    script = ScriptedModel([call("c2", "delete", path="a")], "done")
    agent = Agent(script.model, name="careless", toolsets=careful(script, []).toolsets)
    async with App([durable(agent)], store := MemoryStore()) as app:
        with pytest.raises(UserError, match="DeferredToolRequests"):
            await app.run("careless", "go", run_id=RUN)
        [record] = [record async for record in store.list_runs()]
        assert record.status is RunStatus.FAILED


async def test_a_parked_run_waits_in_the_store(durable_store_url: str) -> None:
    script, done = ScriptedModel(BATCH, "done"), list[str]()
    agent = durable(careful(script, done))
    async with App([agent], durable_store_url, worker=False) as app:
        with pytest.raises(RunParked):
            await app.run(agent, "go", run_id=RUN)
    async with App([agent], durable_store_url, worker=False) as app:
        assert app.store is not None
        [record] = [each async for each in app.store.list_runs()]
        assert (record.status, record.reason) == (RunStatus.PARKED, "approval: delete c2, transfer c3, survey c4")
        await app.unpark(RUN, {"c2": True, "c3": True, "c4": 3})
        await app.recover()
        [record] = [each async for each in app.store.list_runs()]
        assert record.status is RunStatus.DONE
    assert returns(script) == ["seen", "deleted a", "transferred 7", 3]


class Quote(BaseModel):
    """What a tool may show to whoever approves."""

    amount: int


async def test_metadata_that_is_no_plain_data_is_lowered_and_the_approved_call_is_made() -> None:
    paid: list[Any] = []
    script = ScriptedModel([call("c1", "pay", amount=3)], "done")
    agent: Agent[None, Any] = Agent(script.model, name="payer", output_type=[str, DeferredToolRequests])

    @agent.tool
    def pay(ctx: RunContext[None], amount: int) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"quote": Quote(amount=amount)})
        paid.append(ctx.tool_call_metadata)
        return "paid"

    payer = durable(agent)
    async with App([payer], MemoryStore(), worker=False) as app:
        with pytest.raises(RunParked):
            await app.run(payer, "go", run_id=RUN)
        await app.unpark(RUN, {"c1": True})
        await app.resume(RUN)
    assert paid == [{"quote": {"amount": 3}}]
