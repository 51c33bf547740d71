"""Calls whose child runs wait: repeated when the child may continue, woken even if the sender's process dies."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Approve, Reply, RunWaiting, Value, ask_person, current_call, tool
from holdfast.checkpoint.record import Mail, RunStatus
from holdfast.checkpoint.store import END
from holdfast.core import Message, ToolSchema
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class Family:
    """A parent whose tool starts a child that asks a person."""

    def __init__(self, **options: Any) -> None:
        asks = ScriptedModel(tool_reply(call("c", "ask_person", question="Which?")), "blue it is")
        self.child = Agent(name="child", model=asks, tools=[ask_person])
        self.prompts: list[str] = []

        @tool(**options)
        async def delegate(prompt: str) -> str:
            self.prompts.append(prompt)
            return str((await current_call().run(self.child, prompt)).output)

        self.model = ScriptedModel(tool_reply(call("1", "delegate", prompt="do it")), "thanks")
        self.parent = Agent(name="parent", model=self.model, tools=[delegate])

    @property
    def result(self) -> Any:
        return self.model.requests[-1][-1].content  # type: ignore[union-attr]


async def test_a_once_call_whose_child_waits_is_not_in_doubt() -> None:
    family = Family()
    async with App([family.parent, family.child], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting, match="child run of delegate"):
            await app.run("parent", "go", run_id="p")
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))
        assert (await app.resume("p")).output == "thanks"
    assert (family.prompts, family.result) == (["do it", "do it"], "blue it is")


async def test_a_once_call_that_is_started_again_counts_as_started() -> None:
    """Its child is answered, and the process dies within the second call: the outcome is unknown."""
    family, store = Family(), MemoryStore()
    async with App([family.parent, family.child], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("parent", "go", run_id="p")
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))

    host = SimulatedHost(store)

    @tool
    async def delegate(prompt: str) -> str:
        await host.crash()
        return "too late"

    dying = Agent(name="parent", model=family.model, tools=[delegate])
    await asyncio.wait([asyncio.ensure_future(host.resume(dying, "p"))])
    assert (await SimulatedHost(store).resume(family.parent, "p")).output == "thanks"
    assert (family.prompts, family.result) == (["do it"], UNKNOWN_OUTCOME)


async def test_a_child_that_waits_does_not_end_the_siblings_that_its_call_awaits_with_it() -> None:
    family, clock = Family(), ManualClock()
    effects: list[str] = []

    async def answer(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        while not await app.pending():
            await clock.advance(timedelta(0))
        await clock.advance(timedelta(0))  # the call notices that its child waits
        effects.append("worked")
        return Reply(text="worked")

    sibling = Agent(name="sibling", model=answer)

    @tool(effect="idempotent")
    async def delegate() -> str:
        both = [current_call().run(agent, "go") for agent in (family.child, sibling)]
        return ", ".join(str(result.output) for result in await asyncio.gather(*both))

    model = ScriptedModel(tool_reply(call("1", "delegate")), "thanks")
    parent = Agent(name="parent", model=model, tools=[delegate])
    async with App([parent, family.child, sibling], MemoryStore(clock=clock), worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting, match="child run of delegate"):
            await app.run("parent", "go", run_id="p")
        children = {run.agent: run.status for run in (await app.list(parent="p")).runs}
        assert children == {"child": RunStatus.WAITING, "sibling": RunStatus.DONE}
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))
        assert (await app.resume("p")).output == "thanks"
    assert model.requests[-1][-1].content == "blue it is, worked"  # type: ignore[union-attr]
    assert effects == ["worked"]


@pytest.mark.parametrize("effect", ["once", "idempotent"])
async def test_an_approved_call_whose_child_waits_keeps_its_approval_and_its_arguments(effect: str) -> None:
    family = Family(effect=effect, approval=True)
    async with App([family.parent, family.child], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting, match="approval of delegate"):
            await app.run("parent", "go", run_id="p")
        await app.answer("p", "1", Approve(arguments={"prompt": "do less"}), by="ann")
        with pytest.raises(RunWaiting, match="child run of delegate"):
            await app.resume("p")
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))
        assert (await app.resume("p")).output == "thanks"
        [decided] = (await app.get("p")).decided_calls
        assert decided.decision is not None
        assert (decided.decision.kind, decided.decision.by) == ("approve", "ann")
    assert (family.prompts, family.result) == (["do less", "do less"], "blue it is")


async def test_a_parent_is_woken_although_the_sender_died_before_its_notice(durable_store_url: str) -> None:
    family = Family()
    agents = [family.parent, family.child]
    async with App(agents, durable_store_url, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("parent", "go", run_id="p")
        [question] = await app.pending()
        assert app.store is not None
        body = msgspec.json.encode(Value("blue").to_decision("", ""))
        # The answer as `App.answer` posts it, without what follows.
        await app.store.post(question.run_id, Mail(mail_id=question.topic, topic=question.topic, body=body))
        assert (await app.get("p")).status is RunStatus.WAITING
    async with App(agents, durable_store_url) as app:
        assert (await app.result("p", through_waits=True)).output == "thanks"
        assert app.store is not None
        assert (await app.store.load("p", after=END)).mail == ()
    assert family.result == "blue it is"


async def test_a_parent_that_is_awake_gets_no_more_notices() -> None:
    family, store = Family(), MemoryStore()
    async with App([family.parent, family.child], store, worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("parent", "go", run_id="p")
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))
        for _ in range(3):
            await app._stored.mailer.wake_missed_parents()
        assert len((await store.load("p", after=END)).mail) == 1
