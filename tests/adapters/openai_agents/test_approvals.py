"""Calls that wait: for a person's approval, or for a result from elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, FunctionTool, RunConfig, RunContextWrapper, function_tool
from agents.run_config import ToolErrorFormatterArgs
from agents.testing import function_call
from tests.adapters.crash_simulator import RUN, CrashSimulator
from tests.adapters.openai_agents.scripted_model import ScriptedModel, call
from tests.adapters.openai_agents.test_resume import get_outputs

from holdfast import App, ApprovalRequest, Approve, Deferred, Deny, RunWaiting, WorkerSettings, current_call
from holdfast.adapters.openai_agents import ToolPolicy, durable
from holdfast.core.errors import DefinitionError
from holdfast.results import WaitingCall
from holdfast.stores.memory import MemoryStore


class Bank:
    """An agent whose payments may wait for an approval."""

    def __init__(self, *steps: Any, needs_approval: Any = True, policy: ToolPolicy | None = None) -> None:
        self.paid: list[str] = []
        self.looked: list[str] = []

        @function_tool
        async def look(city: str) -> str:
            self.looked.append(city)
            return f"{city} is warm"

        @function_tool(needs_approval=needs_approval)
        async def pay(city: str) -> str:
            self.paid.append(city)
            return f"paid {city}"

        self.model = ScriptedModel(*steps)
        policies = {} if policy is None else {"pay": policy}
        self.sdk_agent = Agent(name="bank", model=self.model, tools=[look, pay])
        self.agent = durable(self.sdk_agent, tools=policies)


async def run_until_waiting(app: App) -> tuple[WaitingCall, ...]:
    with pytest.raises(RunWaiting) as raised:
        await app.run("bank", "go", run_id="r")
    return raised.value.calls


BATCH = [call("c1", "pay", city="Lyon"), call("c2", "look", city="Lyon")]


async def test_an_approved_call_is_made_once_and_its_siblings_did_not_wait() -> None:
    bank = Bank(BATCH, "done")
    async with App([bank.agent], "memory:") as app:
        [waiting] = await run_until_waiting(app)
        assert (waiting.tool, waiting.call_id, waiting.kind) == ("pay", "c1", "approval")
        assert waiting.arguments == {"city": "Lyon"}
        assert await app.pending() == [waiting]
        assert (bank.paid, bank.looked) == ([], ["Lyon"])
        await app.answer("r", "c1", Approve(), by="ann")
        assert (await app.result("r")).output == "done"
    assert (bank.paid, bank.looked) == (["Lyon"], ["Lyon"])
    assert len(bank.model.requests) == 2
    assert get_outputs(bank.model.requests[1]) == {"c1": "paid Lyon", "c2": "Lyon is warm"}


async def test_an_approved_call_whose_process_died_does_not_wait_for_another_approval() -> None:
    deaths, store = CrashSimulator("pay Lyon"), MemoryStore()

    @function_tool(needs_approval=True)
    async def pay(city: str) -> str:
        await deaths.reach(f"pay {city}")
        return f"paid {city}"

    model = ScriptedModel([call("c1", "pay", city="Lyon")], "done")
    agent = durable(Agent(name="bank", model=model, tools=[pay]), tools={"pay": ToolPolicy("idempotent")})
    async with App([agent], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("bank", "go", run_id=RUN)
        await app.answer(RUN, "c1", Approve())
    assert (await deaths.resume(agent, store=store)).output == "done"
    assert deaths.passed == ["pay Lyon", "pay Lyon"]
    assert get_outputs(model.requests[1]) == {"c1": "paid Lyon"}


async def test_a_denied_call_is_not_made_and_the_model_reads_why() -> None:
    bank = Bank(BATCH, "done")
    async with App([bank.agent], "memory:") as app:
        await run_until_waiting(app)
        await app.answer("r", "c1", Deny(reason="too much"))
        await app.result("r")
    assert bank.paid == []
    assert get_outputs(bank.model.requests[1])["c1"] == "The call was denied: too much."


async def test_the_formatter_of_the_run_config_words_a_denial_without_a_reason() -> None:
    async def word(args: ToolErrorFormatterArgs[Any]) -> str:
        return f"{args.kind}: {args.tool_name} {args.call_id}"

    bank = Bank([call("c1", "pay", city="Lyon"), call("c2", "pay", city="Faro")], "done")
    agent = durable(bank.sdk_agent, run_config=RunConfig(tool_error_formatter=word))
    async with App([agent], "memory:") as app:
        await run_until_waiting(app)
        await app.answer("r", "c1", Deny())
        await app.answer("r", "c2", Deny(reason="too far"))
        await app.result("r")
    assert bank.paid == []
    assert get_outputs(bank.model.requests[1]) == {
        "c1": "approval_rejected: pay c1",
        "c2": "The call was denied: too far.",
    }


async def test_a_call_is_made_with_the_arguments_that_were_approved() -> None:
    bank = Bank(BATCH, "done")
    async with App([bank.agent], "memory:") as app:
        await run_until_waiting(app)
        await app.answer("r", "c1", Approve(arguments={"city": "Faro"}))
        await app.result("r")
    assert bank.paid == ["Faro"]


async def test_the_tool_decides_which_calls_need_an_approval() -> None:
    asked: list[str] = []

    async def is_expensive(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        asked.append(call_id)
        return bool(arguments["city"] == "Lyon")

    bank = Bank([*BATCH, call("c3", "pay", city="Faro")], "done", needs_approval=is_expensive)
    async with App([bank.agent], "memory:") as app:
        [waiting] = await run_until_waiting(app)
        assert (waiting.call_id, bank.paid) == ("c1", ["Faro"])
        await app.answer("r", "c1", Approve())
        await app.result("r")
    assert bank.paid == ["Faro", "Lyon"]
    assert asked == ["c1", "c3"], "a resumed run does not ask again"


async def test_a_policy_asks_for_approvals_of_a_tool_that_does_not() -> None:
    policy = ToolPolicy(
        approval=lambda arguments: arguments["city"] == "Lyon" and ApprovalRequest(reason="far", audience="ann")
    )
    bank = Bank([*BATCH, call("c3", "pay", city="Faro")], "done", needs_approval=False, policy=policy)
    async with App([bank.agent], "memory:") as app:
        [waiting] = await run_until_waiting(app)
        assert (waiting.call_id, waiting.reason, waiting.audience) == ("c1", "far", "ann")
        assert bank.paid == ["Faro"]
        await app.answer("r", "c1", Approve(arguments={"city": "Bonn"}))
        await app.result("r")
    assert bank.paid == ["Faro", "Bonn"]


class Branch:
    """A bank whose clerk is an agent as a tool, and pays only with an approval."""

    def __init__(self, *steps: Any, deaths: CrashSimulator | None = None) -> None:
        self.paid: list[str] = []

        @function_tool(needs_approval=True)
        async def pay(city: str) -> str:
            self.paid.append(city)
            if deaths is not None:
                await deaths.reach(f"pay {city}")
            return f"paid {city}"

        self.clerk_model = ScriptedModel(*steps)
        self.model = ScriptedModel([call("c1", "ask_clerk", input="?")], "done")
        self.clerk = Agent(name="clerk", model=self.clerk_model, tools=[pay])
        self.agent = durable(Agent(name="bank", model=self.model, tools=[self.clerk.as_tool("ask_clerk", "Asks.")]))


async def test_a_call_of_an_agent_as_a_tool_waits_for_its_approval_over_a_restart(tmp_path: Path) -> None:
    store, steps = f"sqlite:{tmp_path / 'runs.db'}", ([call("i1", "pay", city="Nice")], "the clerk paid")
    async with App([Branch(*steps).agent], store) as app:
        [waiting] = await run_until_waiting(app)
        assert (waiting.call_id, waiting.tool, waiting.arguments) == ("c1/i1", "pay", {"city": "Nice"})
        assert waiting.reason == "asked by agent clerk"
    branch = Branch(*steps)
    async with App([branch.agent], store, worker=WorkerSettings(take_runs=False)) as app:
        await app.answer("r", "c1/i1", Approve(), by="ann")
        assert (await app.run("bank", "go", run_id="r")).output == "done"
    assert branch.paid == ["Nice"]
    assert get_outputs(branch.clerk_model.requests[0]) == {"i1": "paid Nice"}
    assert get_outputs(branch.model.requests[0]) == {"c1": "the clerk paid"}


async def test_an_agent_as_a_tool_continues_when_all_its_calls_are_decided() -> None:
    calls = [call("i1", "pay", city="Nice"), call("i2", "pay", city="Bonn"), call("i3", "pay", city="Faro")]
    branch = Branch(calls, [call("i4", "pay", city="Lyon")], "the clerk is done")
    async with App([branch.agent], "memory:") as app:
        assert [each.call_id for each in await run_until_waiting(app)] == ["c1/i1", "c1/i2", "c1/i3"]
        await app.answer("r", "c1/i1", Deny(reason="too warm"))
        with pytest.raises(DefinitionError, match="city: is not 'Bonn'"):  # the SDK has no way to change them
            await app.answer("r", "c1/i2", Approve(arguments={"city": "Cork"}))
        await app.answer("r", "c1/i2", Approve())
        assert [each.call_id for each in await run_until_waiting(app)] == ["c1/i3"]
        assert branch.paid == []
        await app.answer("r", "c1/i3", Approve())
        assert [each.call_id for each in await run_until_waiting(app)] == ["c1/i4"]
        assert sorted(branch.paid) == ["Bonn", "Faro"]
        await app.answer("r", "c1/i4", Approve())
        assert (await app.result("r")).output == "done"
        usage = (await app.get("r")).usage
    assert sorted(branch.paid) == ["Bonn", "Faro", "Lyon"]
    assert usage.requests == 5
    outputs = get_outputs(branch.clerk_model.requests[1])
    assert outputs == {"i1": "The call was denied: too warm.", "i2": "paid Bonn", "i3": "paid Faro"}


async def test_an_agent_as_a_tool_that_was_killed_after_its_approval_is_in_doubt() -> None:
    deaths, store = CrashSimulator("pay Nice"), MemoryStore()
    branch = Branch([call("i1", "pay", city="Nice")], "never", deaths=deaths)
    async with App([branch.agent], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("bank", "go", run_id=RUN)
        await app.answer(RUN, "c1/i1", Approve())
    assert (await deaths.resume(branch.agent, store=store)).output == "done"
    assert branch.paid == ["Nice"]
    assert "Unknown outcome" in get_outputs(branch.model.requests[1])["c1"]


def test_a_handoff_cannot_wait_for_an_approval() -> None:
    desk = Agent(name="desk", handoffs=[Agent(name="clerk")])
    with pytest.raises(DefinitionError, match="transfer_to_clerk is a handoff"):
        durable(desk, tools={"transfer_to_clerk": ToolPolicy(approval=True)})


async def test_arguments_that_are_no_json_wait_too_and_do_not_wait_for_ever() -> None:
    given: list[str] = []

    async def invoke(context: Any, arguments: str) -> str:
        given.append(arguments)
        return "paid"

    async def is_expensive(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
        raise AssertionError("it cannot judge them")

    pay = FunctionTool(
        name="pay",
        description="",
        params_json_schema={"type": "object", "properties": {}},
        on_invoke_tool=invoke,
        strict_json_schema=False,
        needs_approval=is_expensive,
    )
    model = ScriptedModel([function_call("pay", "{not json", call_id="c1")], "done")
    async with App([durable(Agent(name="bank", model=model, tools=[pay]))], "memory:") as app:
        [waiting] = await run_until_waiting(app)
        assert (waiting.arguments, given) == ("{not json", [])
        await app.answer("r", "c1", Approve())
        assert (await app.result("r")).output == "done"
    assert given == ["{not json"]


async def test_a_tool_whose_result_comes_later() -> None:
    tokens: list[str] = []

    @function_tool
    async def order() -> Any:
        tokens.append(current_call().completion_token)
        return Deferred(reason="the kitchen")

    @function_tool
    async def look() -> str:
        return "warm"

    model = ScriptedModel([call("c1", "order"), call("c2", "look")], "done")
    async with App([durable(Agent(name="bank", model=model, tools=[order, look]))], "memory:") as app:
        [waiting] = await run_until_waiting(app)
        assert (waiting.kind, waiting.reason) == ("result", "the kitchen")
        await app.complete_call(tokens[0], {"dish": "soup"})
        await app.result("r")
    assert len(tokens) == 1
    assert get_outputs(model.requests[1]) == {"c1": "{'dish': 'soup'}", "c2": "warm"}


async def test_a_call_in_progress_ends_before_the_run_waits_for_a_result() -> None:
    looked: list[str] = []

    @function_tool
    async def order() -> Any:
        return Deferred(reason="the kitchen")

    @function_tool
    async def look() -> str:
        for _ in range(200):  # turns of the event loop in which the other call is found to wait
            await asyncio.sleep(0)
        looked.append("Lyon")
        return "warm"

    model = ScriptedModel([call("c1", "order"), call("c2", "look")], "done")
    async with App([durable(Agent(name="bank", model=model, tools=[order, look]))], "memory:") as app:
        await run_until_waiting(app)
        assert looked == ["Lyon"]
