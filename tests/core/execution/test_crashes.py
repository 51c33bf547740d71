"""Mail and crashes: each mail is applied exactly once, and no call is made without its approval."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent as PydanticAgent
from tests.adapters.scripted_model import ScriptedModel as PydanticScript
from tests.adapters.scripted_model import call as pydantic_call
from tests.adapters.scripted_model import get_texts
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import (
    Agent,
    App,
    Approve,
    Phase,
    Reply,
    RunWaiting,
    ToolResult,
    User,
    Value,
    current_call,
    tool,
    wait_for,
)
from holdfast.adapters.pydantic_ai import durable
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import END, get_record, iter_runs
from holdfast.clock import SYSTEM_CLOCK
from holdfast.config import CheckpointSettings
from holdfast.core import Message
from holdfast.core.agents.agent_tools import AgentToolProvider
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.waiting_tools import ask_person, sleep
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.ports import Ports
from holdfast.runtime.operations.mailing import Mailer, NotWaiting
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class Story:
    """A run that pays with approval, waits for a signal and gets a message; one of its processes dies."""

    def __init__(self, effect: str, settings: CheckpointSettings) -> None:
        self.inner, self.settings = MemoryStore(), settings
        self.mailer = Mailer(self.inner, clock=SYSTEM_CLOCK)
        self.paid: list[bool] = []
        self.answered, self.died = 0, False

        @tool(effect=Effect(effect), approval=True)
        async def pay(amount: int) -> str:
            self.paid.append(self.answered > 0)
            await asyncio.sleep(0)
            return f"paid {amount}"

        calls = [call("1", "pay", amount=200), call("2", "wait_for", name="ready")]
        self.model = ScriptedModel(tool_reply(*calls), "done")
        self.agent = Agent(name="a", model=self.model, tools=[pay, wait_for])

    async def tell(self, die_at: int) -> None:
        """Execute the run to its end. The process that makes the write number `die_at` dies before it."""
        writes = 0
        await self.inner.open()
        while not await self._is_done():
            host = SimulatedHost(self.inner, settings=self.settings)

            async def count(method: str, host: SimulatedHost = host) -> None:
                nonlocal writes
                if method in ("create", "append", "release"):
                    writes += 1
                    if writes == die_at:
                        host.store.die()
                        self.died = True
                        raise RuntimeError("killed")

            host.store.before = count
            try:
                if "r" in await host.get_statuses():
                    await host.resume(self.agent, "r")
                else:
                    await host.executor.run(self.agent, "go", run_id="r")
            except Exception:  # the process is dead, or the run waits
                pass
            await host.crash()
            await self._answer()

    async def _is_done(self) -> bool:
        records = [record async for record in iter_runs(self.inner)]
        return any(record.status is RunStatus.DONE for record in records)

    async def _answer(self) -> None:
        records = [record async for record in iter_runs(self.inner)]
        if not records or records[0].status is not RunStatus.WAITING:
            return
        if pending := await self.mailer.list_pending():
            self.answered += 1
            await self.mailer.answer("r", pending[0].call_id, Approve())
        await self.mailer.signal("r", "ready", 7, "s")
        await self.mailer.send("r", "hurry", "m")


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
@pytest.mark.parametrize("save_interval", [timedelta(0), timedelta(hours=1)])
async def test_a_death_before_any_write_applies_each_mail_once(effect: str, save_interval: timedelta) -> None:
    for die_at in range(1, 100):
        story = Story(effect, CheckpointSettings(save_interval=save_interval))
        await asyncio.wait_for(story.tell(die_at), 20)
        assert all(story.paid), "a call was made without its approval"
        last = story.model.requests[-1]
        assert [message for message in last if message == User("hurry")] == [User("hurry")]
        paid, signal = [message.content for message in last if isinstance(message, ToolResult)]
        assert signal == 7
        assert story.answered == 1, "a person was asked twice"
        if effect == "once":
            assert len(story.paid) <= 1
            assert paid == "paid 200" if not story.died else paid in ("paid 200", UNKNOWN_OUTCOME)
        else:
            assert paid == "paid 200"
        if not story.died:
            assert die_at > 4
            return
    raise AssertionError("the run never ended")


async def test_an_approved_once_call_that_was_started_is_in_doubt_and_not_asked_again() -> None:
    host = SimulatedHost(settings=CheckpointSettings())
    paid: list[int] = []
    mailer = Mailer(host.inner, clock=SYSTEM_CLOCK)

    @tool(approval=True)
    async def pay(amount: int) -> str:
        paid.append(amount)
        await second.crash()
        return "paid"

    model = ScriptedModel(tool_reply(call("1", "pay", amount=200)), "done")
    agent = Agent(name="a", model=model, tools=[pay])
    with pytest.raises(RunWaiting):
        await host.executor.run(agent, "go", run_id="r")
    await mailer.answer("r", "1", Approve(arguments={"amount": 150}))
    assert len((await host.inner.load("r", after=END)).mail) == 1
    second = SimulatedHost(host.inner)
    await asyncio.wait([asyncio.ensure_future(second.resume(agent, "r"))])
    assert (await host.inner.load("r", after=END)).mail == (), "consumed before the tool was started"
    assert (await SimulatedHost(host.inner).resume(agent, "r")).output == "done"
    assert paid == [150]
    assert model.requests[-1][-1].content == UNKNOWN_OUTCOME  # type: ignore[union-attr]


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
async def test_a_crash_in_a_sibling_call_does_not_let_a_call_start_without_its_approval(effect: str) -> None:
    host = SimulatedHost(settings=CheckpointSettings())
    paid: list[int] = []

    @tool
    async def note() -> str:
        await host.crash()
        return "noted"

    @tool(effect=Effect(effect), approval=True)
    async def pay() -> str:
        paid.append(1)
        return "paid"

    model = ScriptedModel(tool_reply(call("1", "note"), call("2", "pay")), "done")
    agent = Agent(name="a", model=model, tools=[note, pay])
    await asyncio.wait([asyncio.ensure_future(host.executor.run(agent, "go", run_id="r"))])
    with pytest.raises(RunWaiting) as raised:
        await SimulatedHost(host.inner).resume(agent, "r")
    assert [waiting.call_id for waiting in raised.value.calls] == ["2"]
    assert paid == []


async def test_a_message_during_the_last_reply_of_the_last_phase_is_answered() -> None:
    sent = asyncio.Event()

    async def answers(messages: Sequence[Message]) -> Reply:
        if not sent.is_set():
            # Behind the back of the executing App: it is not delivered before the run ends.
            await Mailer(store, clock=SYSTEM_CLOCK).send("r", "and this?")
            sent.set()
        return Reply(text="first")

    store, plan, write = MemoryStore(), ScriptedModel("plan"), ScriptedModel(answers, "second")
    phases = [Phase(name="plan", model=plan, prompt="Plan"), Phase(name="write", model=write, prompt="Write")]
    async with App([Agent(name="a", phases=phases)], store, worker=False) as app:
        result = await app.run("a", "go", run_id="r")
    assert (result.output, [phase.output for phase in result.phases]) == ("second", ["plan", "second"])
    assert write.requests[-1][-1] == User("and this?")
    assert len(plan.requests) == 1


async def test_a_failed_run_keeps_its_unread_mail_for_the_next_attempt() -> None:
    store, broken = MemoryStore(), True

    async def replies(messages: Sequence[Message]) -> Reply:
        if broken:
            await Mailer(store, clock=SYSTEM_CLOCK).send("r", "are you there?", "m")
            raise ValueError("broken")
        return Reply(text=str([message.text for message in messages if isinstance(message, User)]))

    async with App([Agent(name="a", model=ScriptedModel(replies))], store, worker=False) as app:
        with fails_with(ValueError, match="broken"):
            await app.run("a", "go", run_id="r")
        broken = False
        assert (await app.resume("r")).output == "['go', 'are you there?']"
        assert (await store.load("r", after=END)).mail == ()


async def test_waits_of_one_step_do_not_answer_a_call_of_the_same_id_in_the_next() -> None:
    model = ScriptedModel(
        tool_reply(call("1", "ask_person", question="one?")),
        tool_reply(call("1", "ask_person", question="two?")),
        "done",
    )
    async with App([Agent(name="a", model=model, tools=[ask_person])], MemoryStore(), worker=False) as app:
        for question in ("one?", "two?"):
            with pytest.raises(RunWaiting, match=question.replace("?", "")):
                await (app.run("a", "go", run_id="r") if question == "one?" else app.resume("r"))
            [pending] = await app.pending()
            assert pending.arguments["question"] == question
            await app.answer("r", "1", Value(question))
        assert (await app.resume("r")).output == "done"
    assert [m.content for m in model.requests[-1] if isinstance(m, ToolResult)] == ["one?", "two?"]


async def test_a_wait_that_has_expired_does_not_wake_the_run_again() -> None:
    clock = ManualClock()
    host = SimulatedHost(MemoryStore(clock=clock), settings=CheckpointSettings(), clock=clock)
    model = ScriptedModel(tool_reply(call("1", "sleep", seconds=5), call("2", "wait_for", name="ready")), "done")
    agent = Agent(name="a", model=model, tools=[sleep, wait_for])
    with pytest.raises(RunWaiting):
        await host.executor.run(agent, "go", run_id="r")
    await clock.advance(timedelta(seconds=5))
    with pytest.raises(RunWaiting) as raised:
        await host.resume(agent, "r")
    assert [waiting.call_id for waiting in raised.value.calls] == ["2"]
    assert (await get_record(host.inner, "r")).wake_at is None


async def test_a_store_whose_clock_is_ahead_does_not_wake_the_run_too_early() -> None:
    ahead, clock = ManualClock(), ManualClock()
    await ahead.advance(timedelta(minutes=1))
    host = SimulatedHost(MemoryStore(clock=ahead), settings=CheckpointSettings(), clock=clock)
    model = ScriptedModel(tool_reply(call("1", "sleep", seconds=5)), "done")
    agent = Agent(name="a", model=model, tools=[sleep])
    with pytest.raises(RunWaiting):
        await host.executor.run(agent, "go", run_id="r")
    assert await host.inner.claim_next("other", agents=["a"], limit=1) == ()
    await ahead.advance(timedelta(seconds=5))
    await clock.advance(timedelta(seconds=5))
    assert (await host.resume(agent, "r")).output == "done"


# -- child runs -------------------------------------------------------------------------------------------------------


def family(child_model: Any, *tools: Any) -> tuple[Agent, Agent]:
    child = Agent(name="child", model=child_model, tools=list(tools))
    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "child", prompt="do it")), "thanks"))
    return parent, child


async def test_a_parent_waits_with_its_child_and_continues_when_the_child_is_answered(durable_store_url: str) -> None:
    child_model = ScriptedModel(tool_reply(call("c", "ask_person", question="Which?")), "blue it is")
    parent, child = family(child_model, ask_person)
    async with App([parent, child], durable_store_url, tools=[AgentToolProvider([child])]) as app:
        with pytest.raises(RunWaiting, match=r"child run of child .*Which") as raised:
            await app.run("parent", "go", run_id="p")
        assert [waiting.kind for waiting in raised.value.calls] == ["child"]
        assert (await app.get("p")).status is RunStatus.WAITING
        with pytest.raises(NotWaiting):  # the child is answered, not its parent
            await app.answer("p", "1", Value("blue"))
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))
        while (await app.get("p")).status is not RunStatus.DONE:
            assert app.store is not None
            await app.store.wait_for_change(timedelta(seconds=0.05))
        assert (await app.result("p")).output == "thanks"
    assert len(child_model.requests) == 2
    assert parent.model.requests[-1][-1].content == "blue it is"  # type: ignore[union-attr]


async def test_a_parent_sleeps_with_its_child_and_run_waits_through_it() -> None:
    parent, child = family(ScriptedModel(tool_reply(call("c", "sleep", seconds=0.1)), "rested"), sleep)
    async with App([parent, child], MemoryStore(), tools=[AgentToolProvider([child])]) as app:
        assert (await app.run("parent", "go", run_id="p")).output == "thanks"
    assert parent.model.requests[-1][-1].content == "rested"  # type: ignore[union-attr]


async def test_an_answer_that_comes_before_the_parent_waits_is_not_missed() -> None:
    store = MemoryStore()
    parent, child = family(
        ScriptedModel(tool_reply(call("c", "ask_person", question="Which?")), "blue it is"), ask_person
    )
    host = SimulatedHost(store, settings=CheckpointSettings(), ports=Ports(extra_tools=AgentToolProvider([child])))
    mailer = Mailer(store, clock=SYSTEM_CLOCK)

    async def answer(method: str) -> None:
        if method != "release":
            return
        pending = await mailer.list_pending()
        if pending and (await get_record(store, pending[0].run_id)).status is RunStatus.WAITING:
            host.store.before = None
            await mailer.answer(pending[0].run_id, "c", Value("blue"))

    host.store.before = answer
    with pytest.raises(Exception, match="mail has arrived"):
        await host.executor.run(parent, "go", run_id="p")
    assert (await get_record(store, "p")).status is RunStatus.INTERRUPTED
    assert (await host.resume(parent, "p")).output == "thanks"


async def test_a_parent_of_another_loop_waits_with_its_child_too() -> None:
    script = PydanticScript([pydantic_call("c1", "delegate")], "thanks")
    agent = PydanticAgent(script.model, name="parent")
    child_model = ScriptedModel(tool_reply(call("c", "ask_person", question="Which?")), "blue it is")
    child = Agent(name="child", model=child_model, tools=[ask_person])

    @agent.tool_plain(metadata={"effect": "idempotent"})
    async def delegate() -> str:
        return str((await current_call().run(child, "do it")).output)

    async with App([durable(agent), child], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting, match="child run of delegate"):
            await app.run("parent", "go", run_id="p")
        [question] = await app.pending()
        await app.answer(question.run_id, "c", Value("blue"))
        assert (await app.resume("p")).output == "thanks"
    assert get_texts(script.asked[-1])[-1] == ("tool-return", "blue it is")
