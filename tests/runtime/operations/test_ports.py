"""Conversations with budgets, critics, listeners, child runs, redaction and loops of others."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.core.null_listener import NullListener
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, CheckpointSettings, Reply, RunInfo, RunWaiting, Usage, User, ask_person
from holdfast.batteries.budget import Budget, BudgetExhausted, Limit
from holdfast.batteries.critic import Critic
from holdfast.checkpoint.errors import TurnConflict
from holdfast.checkpoint.record import RunStatus
from holdfast.core import Message, ToolSchema
from holdfast.core.agents.agent_tools import AgentToolProvider
from holdfast.core.errors import RunParked
from holdfast.core.execution.native_loop import NativeLoop
from holdfast.core.execution.step import StepContext
from holdfast.core.redaction import Redactor
from holdfast.core.run.run_events import Event, TurnStarted
from holdfast.errors import TurnFailed
from holdfast.stores.memory import MemoryStore


async def echo(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    texts = [message.text for message in messages if isinstance(message, User)]
    if texts[-1] == "slow":
        await asyncio.sleep(60)
    return Reply(text=f"{len(texts)} {texts[-1]}", usage=Usage(input_tokens=10))


AGENT = Agent(name="a", model=echo)


async def test_a_budget_counts_over_turns_and_the_conversation_waits() -> None:
    budget = Budget(Limit(tokens=20, per="all"))
    async with App([AGENT], MemoryStore(), budget=budget) as app:
        chat = app.conversation("a", "k")
        for _ in range(2):
            await chat.send("hello")
        assert (await budget.spent("all")).tokens == 20
        with pytest.raises(BudgetExhausted, match="20 of 20 tokens"):
            await chat.send("more", id="m3")
        assert (await app.get(chat.run_id)).status is RunStatus.WAITING
        assert [turn.number for turn in await chat.history()] == [1, 2]
    async with App([AGENT], app.store) as app:  # without a budget
        await app.requeue(chat.run_id)
        assert (await app.conversation("a", "k").result("m3")).output == "3 more"


async def test_a_critic_watches_each_turn_by_itself() -> None:
    critic = Critic(soft_timeout=timedelta(seconds=10), ceiling=timedelta(seconds=1))
    async with App([AGENT], MemoryStore(), critic=critic) as app:
        chat = app.conversation("a", "k")
        with pytest.raises(TurnFailed, match="ceiling"):
            await chat.send("slow")
        assert (await chat.send("quick")).number == 2


async def test_a_listener_gets_each_turn() -> None:
    class Listener(NullListener):
        def __init__(self) -> None:
            self.events: list[tuple[str, str]] = []

        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, TurnStarted):
                self.events.append(("turn", f"{event.turn_id} {event.prompt}"))
            elif event.type == "status":
                self.events.append(("resumed", ""))

        async def on_output(self, info: RunInfo, output: Any) -> None:
            self.events.append(("output", output))

    listener = Listener()
    async with App([AGENT], MemoryStore(), listener=listener) as app:
        chat = app.conversation("a", "k")
        for number in (1, 2):
            await chat.send("hello", id=f"m{number}")
    assert listener.events == [
        ("turn", "m1 hello"),
        ("output", "1 hello"),
        ("turn", "m2 hello"),
        ("output", "2 hello"),
    ]


async def test_an_interrupted_turn_cancels_its_child_runs(durable_store_url: str) -> None:
    child = Agent(
        name="child", model=ScriptedModel(tool_reply(call("c", "ask_person", question="?"))), tools=[ask_person]
    )

    async def delegate(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        last = messages[-1]
        return tool_reply(call("1", "child", prompt="do")) if last == User("delegate") else Reply(text="done")

    parent = Agent(name="parent", model=delegate)
    async with App([parent, child], durable_store_url, tools=[AgentToolProvider([child])]) as app:
        chat = app.conversation("parent", "k")
        with pytest.raises(RunWaiting):
            await chat.send("delegate")
        [question] = await app.pending()
        assert (await chat.send("never mind", when="interrupt")).output == "done"
        assert await app.pending() == []
        assert (await app.get(question.run_id)).status is RunStatus.CANCELLED
        assert not (await app.get(chat.run_id)).cancel_requested


async def test_a_conversation_over_the_transcript_limit_is_parked_after_its_last_answer() -> None:
    settings = CheckpointSettings(max_transcript_bytes=2_000)
    async with App([AGENT], MemoryStore(), checkpoint=settings) as app:
        chat = app.conversation("a", "k")
        chatter = (chat.send("x" * 100, id=f"m{number}") for number in range(20))
        with pytest.raises(RunParked, match="size"):
            [await turn for turn in chatter]
        turns = await chat.history()
        assert len(turns) > 1
        assert all(turn.output for turn in turns if turn.status == "done")


async def test_secrets_are_redacted_and_ids_still_work() -> None:
    store = MemoryStore()
    redact = Redactor(patterns=["key-[0-9a-f]+"])
    async with App([AGENT], store, checkpoint=CheckpointSettings(redact=redact)) as app:
        chat = app.conversation("a", "k")
        ids = ["token", "key-1"]
        for turn_id in ids:
            turn = await chat.send("my key is key-123456789", id=turn_id)
            assert await chat.send("my key is key-123456789", id=turn_id) == turn
            with pytest.raises(TurnConflict):
                await chat.send("another", id=turn_id)
        assert [turn.turn_id for turn in await chat.history()] == ids
        stored = await store.load(chat.run_id)
        assert b"123456789" not in b"".join([*(entry.body for entry in stored.entries), stored.record.progress])


async def test_a_loop_that_ignores_the_next_message_is_refused() -> None:
    class OldLoop(NativeLoop):
        async def run(self, context: StepContext) -> Any:
            if not context.state.history:
                await context.start([User(str(context.prompt))])
                await context.begin_step()
                context.state.history.append(Reply(text="first"))
                await context.end_step()
            return "first"

    async with App([Agent(name="a", loop=OldLoop())], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        assert (await chat.send("one")).output == "first"
        with pytest.raises(TurnFailed, match="does not support conversations"):
            await chat.send("two")
