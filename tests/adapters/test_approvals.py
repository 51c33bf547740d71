"""Calls of pydantic-ai agents that wait: for an approval, for a result. The run continues in whichever process."""

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
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import ModelRequest, ToolReturnPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset
from tests.adapters.crash_simulator import RUN, CrashSimulator
from tests.adapters.scripted_model import ScriptedModel, call, get_texts
from tests.probe_store import ProbeStore

from holdfast import App, Approve, Deferred, Deny, RunWaiting, Value, current_call
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import Answer
from holdfast.results import WaitingCall
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting
from holdfast.stores.memory import MemoryStore

BATCH = [call("c1", "look"), call("c2", "delete", path="a"), call("c3", "transfer", amount=7), call("c4", "survey")]


def careful(script: ScriptedModel, done: list[str], deaths: CrashSimulator | None = None) -> Agent[None, Any]:
    """An agent with calls that need approval always, or sometimes, and one that other code makes."""
    survey = ToolDefinition(name="survey", parameters_json_schema={"type": "object", "properties": {}})
    agent: Agent[None, Any] = Agent(script.model, name="careful", toolsets=[ExternalToolset([survey])])

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
            raise ApprovalRequired(metadata={"amount": amount, "reason": "money"})
        done.append(f"transfer {amount} {ctx.tool_call_metadata}")
        return f"transferred {amount}"

    return agent


async def waiting(agent: Any, store: MemoryStore, **options: Any) -> tuple[WaitingCall, ...]:
    """Run the agent until it waits; its calls that wait."""
    async with App([agent], ProbeStore(store), worker=False, **options) as app:
        with pytest.raises(RunWaiting) as stopped:
            await app.run(agent, "go", run_id=RUN)
        assert (await app.get(RUN)).status is RunStatus.WAITING
    return stopped.value.calls


async def answered(agent: Any, store: MemoryStore, answers: dict[str, Answer]) -> Any:
    """Answer in one process, and continue in another."""
    async with App([agent], ProbeStore(store), worker=False) as app:
        for call_id, answer in answers.items():
            await app.answer(RUN, call_id, answer)
    async with App([agent], ProbeStore(store), worker=False) as app:
        return await app.resume(RUN)


def returns(script: ScriptedModel) -> list[Any]:
    return [content for kind, content in get_texts(script.asked[-1]) if kind == "tool-return"]


def outcomes(script: ScriptedModel) -> list[str]:
    parts = [part for message in script.asked[-1] if isinstance(message, ModelRequest) for part in message.parts]
    return [part.outcome for part in parts if isinstance(part, ToolReturnPart)]


async def test_the_run_waits_and_continues_with_the_answers() -> None:
    script, done, store = ScriptedModel(BATCH, "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    calls = await waiting(agent, store)
    assert done == ["look"]
    assert sorted((each.call_id, each.kind, each.tool, each.reason) for each in calls) == [
        ("c2", "approval", "delete", ""),
        ("c3", "approval", "transfer", "money"),
        ("c4", "result", "survey", ""),
    ]
    async with App([agent], ProbeStore(store), worker=False) as app:
        pending = {each.call_id: each for each in await app.pending()}
        assert pending == {each.call_id: each for each in calls}
        assert (pending["c2"].arguments, pending["c3"].metadata) == ({"path": "a"}, {"amount": 7, "reason": "money"})
    result = await answered(agent, store, {"c2": Approve(), "c3": Approve(), "c4": Value({"people": 12})})
    assert result.output == "done"
    assert sorted(done) == ["delete a", "look", "transfer 7 {'amount': 7, 'reason': 'money'}"]
    assert returns(script) == ["seen", "deleted a", "transferred 7", {"people": 12}]
    assert (len(script.asked), result.steps, result.usage.tool_calls) == (2, 2, 3)


@pytest.mark.parametrize(
    ("answer", "done", "text", "outcome"),
    [
        (Deny(), [], "The tool call was denied.", "denied"),
        (Deny(reason="not that one"), [], "not that one", "denied"),
        (Approve(arguments={"path": "b"}), ["delete b"], "deleted b", "success"),
    ],
)
async def test_a_person_may_edit_or_deny(answer: Answer, done: list[str], text: str, outcome: str) -> None:
    script, made, store = ScriptedModel([call("c2", "delete", path="a")], "done"), list[str](), MemoryStore()
    agent = durable(careful(script, made))
    await waiting(agent, store)
    await answered(agent, store, {"c2": answer})
    assert made == done
    assert text in str(returns(script)[0])
    assert outcomes(script) == [outcome]


async def test_edited_arguments_that_do_not_fit_are_refused_and_the_call_keeps_waiting() -> None:
    script, made, store = ScriptedModel([call("c2", "delete", path="a")], "done"), list[str](), MemoryStore()
    agent = durable(careful(script, made))
    await waiting(agent, store)
    with pytest.raises(DefinitionError, match="the tool delete: path: is missing"):
        await answered(agent, store, {"c2": Approve(arguments={"way": "b"})})
    assert (await answered(agent, store, {"c2": Approve()})).output == "done"
    assert made == ["delete a"]


async def test_two_approved_calls_are_made_now_and_the_third_keeps_waiting() -> None:
    batch = [call("c1", "delete", path="a"), call("c2", "transfer", amount=7), call("c3", "delete", path="b")]
    script, done, store = ScriptedModel(batch, "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    await waiting(agent, store)
    with pytest.raises(RunWaiting) as stopped:
        await answered(agent, store, {"c1": Approve(), "c3": Deny(reason="keep b")})
    assert [each.call_id for each in stopped.value.calls] == ["c2"]
    assert done == ["delete a"]
    with pytest.raises(RunWaiting):
        await answered(agent, store, {})
    assert (await answered(agent, store, {"c2": Approve()})).output == "done"
    assert returns(script) == ["deleted a", "transferred 7", "keep b"]
    assert len(done) == 2


async def test_a_call_is_answered_once() -> None:
    script, done, store = ScriptedModel([call("c2", "delete", path="a")], "done"), list[str](), MemoryStore()
    agent = durable(careful(script, done))
    await waiting(agent, store)
    async with App([agent], ProbeStore(store), worker=False) as app:
        with pytest.raises(NotWaiting, match="c9"):
            await app.answer(RUN, "c9", Approve())
        taken = await asyncio.gather(
            *(app.answer(RUN, "c2", Approve(), by=str(number)) for number in range(5)), return_exceptions=True
        )
        refused = [each for each in taken if each is not None]
        assert len(refused) == 4
        assert all(isinstance(each, AlreadyAnswered) for each in refused)
        await asyncio.gather(*(app.recover() for _ in range(3)))
    assert done == ["delete a"]
    assert len(script.asked) == 2


async def test_an_approved_call_in_doubt_is_not_made_again() -> None:
    """It dies within the approved call, and must not take the approval for a second one."""
    deaths, store, done = CrashSimulator("delete"), MemoryStore(), list[str]()
    script = ScriptedModel([call("c2", "delete", path="a")], "done")
    agent = durable(careful(script, done, deaths))
    await waiting(agent, store)
    async with App([agent], ProbeStore(store), worker=False) as app:
        await app.answer(RUN, "c2", Approve())
    result = await deaths.resume(agent, store=store)
    assert result.output == "done"
    assert done == ["delete a"]
    assert "Unknown outcome" in returns(script)[0]


async def test_an_approved_idempotent_call_is_made_again_with_the_edited_arguments() -> None:
    deaths, store, done = CrashSimulator("delete"), MemoryStore(), list[str]()
    script = ScriptedModel([call("c2", "delete", path="a")], "done")
    agent = durable(careful(script, done, deaths), tools={"delete": ToolPolicy("idempotent")})
    await waiting(agent, store)
    async with App([agent], ProbeStore(store), worker=False) as app:
        await app.answer(RUN, "c2", Approve(arguments={"path": "b"}))
    assert (await deaths.resume(agent, store=store)).output == "done"
    assert done == ["delete b", "delete b"]


async def test_a_deferred_call_gets_its_result_through_its_token_and_is_not_made_again() -> None:
    store, done, tokens = MemoryStore(), list[str](), list[str]()
    script = ScriptedModel([call("c1", "look"), call("c2", "render"), call("c3", "transfer", amount=7)], "done")
    inner = careful(script, done)

    @inner.tool_plain(sequential=True)
    async def render() -> str:
        done.append("render")
        tokens.append(current_call().completion_token)
        raise CallDeferred(metadata={"scene": "sea"})

    agent = durable(inner)
    render_call, _ = await waiting(agent, store)
    assert (render_call.call_id, render_call.kind, render_call.metadata) == ("c2", "result", {"scene": "sea"})
    async with App([agent], ProbeStore(store), worker=False) as app:
        assert [each.call_id for each in await app.pending()] == ["c3"]  # the other one is completed by its token
        with pytest.raises(NotWaiting):
            await app.complete_call(f"{RUN}~guess", "forged")
        await app.complete_call(tokens[0], "rendered")
    assert (await answered(agent, store, {"c3": Deny()})).output == "done"
    assert done == ["look", "render"]
    assert returns(script) == ["seen", "rendered", "The tool call was denied."]


async def test_an_approved_call_may_be_deferred_too() -> None:
    store, tokens = MemoryStore(), list[str]()
    script = ScriptedModel([call("c1", "render")], "done")
    inner: Agent[None, Any] = Agent(script.model, name="painter")

    @inner.tool_plain(requires_approval=True)
    async def render() -> Any:
        tokens.append(current_call().completion_token)
        return Deferred(reason="rendering")

    agent = durable(inner)
    await waiting(agent, store)
    with pytest.raises(RunWaiting, match="the result of render"):
        await answered(agent, store, {"c1": Approve(comment="fine")})
    async with App([agent], ProbeStore(store), worker=False) as app:
        await app.complete_call(tokens[0], "rendered")
        assert (await app.resume(RUN)).output == "done"
    assert (len(tokens), returns(script)) == (1, ["rendered"])


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


async def test_a_waiting_run_stays_in_the_store(durable_store_url: str) -> None:
    script, done = ScriptedModel(BATCH, "done"), list[str]()
    agent = durable(careful(script, done))
    async with App([agent], durable_store_url, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "go", run_id=RUN)
    async with App([agent], durable_store_url, worker=False) as app:
        answers: dict[str, Answer] = {"c2": Approve(), "c3": Approve(), "c4": Value(3)}
        for call_id, answer in answers.items():
            await app.answer(RUN, call_id, answer)
        await app.recover()
        assert (await app.get(RUN)).status is RunStatus.DONE
    assert returns(script) == ["seen", "deleted a", "transferred 7", 3]


class Quote(BaseModel):
    """What a tool may show to the person who approves."""

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

    store = MemoryStore()
    await waiting(durable(agent), store)
    await answered(durable(agent), store, {"c1": Approve()})
    assert paid == [{"quote": {"amount": 3}}]


async def test_a_tool_that_asks_again_after_its_approval_fails() -> None:
    script, store = ScriptedModel([call("c1", "pay")], "done"), MemoryStore()
    agent: Agent[None, Any] = Agent(script.model, name="payer")

    @agent.tool_plain
    def pay() -> str:
        raise ApprovalRequired

    await waiting(durable(agent), store)
    assert (await answered(durable(agent), store, {"c1": Approve()})).output == "done"
    assert "although the call was approved" in returns(script)[0]
