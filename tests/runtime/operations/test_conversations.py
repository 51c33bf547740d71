"""Conversations: turns, their results, and messages that arrive during a turn."""

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import call, tool_reply

from holdfast import (
    Agent,
    App,
    Approve,
    Bounds,
    CheckpointSettings,
    Phase,
    Reply,
    Retention,
    RunWaiting,
    System,
    ToolResult,
    Usage,
    User,
    sleep,
    tool,
)
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import (
    CheckpointError,
    RunConflict,
    RunNotFound,
    StoreUnavailable,
    TurnConflict,
    TurnNotFound,
)
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Mail, Release, RunStatus
from holdfast.checkpoint.store import END
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import DefinitionError, RunCancelled, RunFailed, RunParked, TurnFailed
from holdfast.core.execution.turn_cycle import CLOSED_CALL
from holdfast.core.run.turns import TURN_TOPIC, TurnMessage
from holdfast.errors import ConversationBusy, ConversationClosed
from holdfast.results import Conversation
from holdfast.runtime.operations.forking import copy_turns
from holdfast.runtime.operations.run_client import RunClient
from holdfast.stores.memory import MemoryStore
from holdfast.testing.store_processes.store_under_test import add_worker


def list_texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages if isinstance(message, User)]


class Echo:
    """A model that answers with the number of messages and the last one. It obeys messages such as `fail`."""

    def __init__(self, **replies: Reply | Exception) -> None:
        self.replies = replies
        self.requests: list[tuple[Message, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.requests.append(tuple(messages))
        texts = list_texts(messages)
        reply = self.replies.get(texts[-1]) if isinstance(messages[-1], User) else None
        if isinstance(reply, Exception):
            raise reply
        if reply is not None:
            return reply
        return Reply(text=f"{len(texts)} {texts[-1]}", usage=Usage(input_tokens=10, output_tokens=1))


class Gate(Echo):
    """Each request waits until the gate is opened for it."""

    def __init__(self, **replies: Reply | Exception) -> None:
        super().__init__(**replies)
        self.asked: asyncio.Queue[None] = asyncio.Queue()
        self.opened: asyncio.Queue[None] = asyncio.Queue()

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.asked.put_nowait(None)
        await self.opened.get()
        return await super().__call__(messages, tools)


# -- turns ------------------------------------------------------------------------------------------------------------


async def test_each_message_gets_the_result_of_its_turn_from_any_process(durable_store_url: str) -> None:
    agent = Agent(name="a", model=Echo(), instructions="Be kind.")
    async with App([agent], durable_store_url) as app, App([agent], durable_store_url, worker=False) as other:
        chat, same = app.conversation(agent, "k"), other.conversation("a", "k")
        first = await chat.send("one", id="m1")
        second = await same.send("two", id="m2")
        assert (first.output, second.output) == ("1 one", "2 two")
        assert (second.turn_id, second.number, second.steps, second.status) == ("m2", 2, 1, "done")
        assert second.usage == Usage(input_tokens=10, output_tokens=1, requests=1)
        assert [type(message) for message in second.messages] == [User, Reply]
        assert [type(message) for message in first.messages] == [System, User, Reply]
        assert await same.send("one", id="m1") == first
        assert await chat.result("m2") == second
        assert await chat.history() == await same.history() == [first, second]
        run = await app.get(chat.run_id)
        assert (run.status, run.description, run.owner) == (
            RunStatus.WAITING,
            "waits for the next message, after 2 turns",
            None,
        )
        assert (run.conversation, run.turns, run.steps, run.usage.input_tokens) == ("k", 2, 2, 20)


async def test_processes_that_take_turns_see_each_others_messages(durable_store_url: str) -> None:
    model = Echo()
    agent = Agent(name="a", model=model)
    async with (
        App([agent], durable_store_url, worker=False) as one,
        App([agent], durable_store_url, worker=False) as two,
    ):
        chats = [one.conversation("a", "k"), two.conversation("a", "k")] * 2
        assert [(await chat.send("hello")).output for chat in chats] == [f"{n} hello" for n in (1, 2, 3, 4)]
        await chats[1].erase()
        # As many entries as the erased conversation had when the first process executed its last turn.
        for _ in range(3):
            await chats[1].send("again")
        await chats[0].send("hello")
        assert list_texts(model.requests[-1]) == ["again", "again", "again", "hello"]


async def test_messages_of_two_processes_have_one_order_and_all_are_answered(durable_store_url: str) -> None:
    agent = Agent(name="a", model=Echo())
    async with App([agent], durable_store_url) as app, App([agent], durable_store_url) as other:
        chats = [app.conversation("a", "k"), other.conversation("a", "k")]
        turns = await asyncio.gather(*(chat.send(f"{place}{n}") for n in range(6) for place, chat in enumerate(chats)))
        history = await chats[0].history()
        assert sorted(turns, key=lambda turn: turn.number) == history
        assert [turn.number for turn in history] == list(range(1, 13))
        assert [turn.output for turn in history] == [f"{turn.number} {turn.prompt}" for turn in history]


async def test_an_id_belongs_to_one_message_however_old_it_is() -> None:
    model = Echo()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        turns = [await chat.send(f"text {n}", id=f"m{n}") for n in range(12)]
        assert await chat.send("text 0", id="m0") == await chat.result("m0") == turns[0]
        assert await chat.send("text 11", id="m11") == turns[11]
        for number in (0, 11):
            with pytest.raises(TurnConflict):
                await chat.send("another text", id=f"m{number}")
        with pytest.raises(CheckpointError, match="no message"):
            await chat.result("unknown")
    assert len(model.requests) == 12


async def test_an_id_of_a_message_in_progress_belongs_to_it_too() -> None:
    model = Gate()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        sends = [asyncio.create_task(chat.send("one", id="m1")), asyncio.create_task(chat.send("one", id="m1"))]
        await model.asked.get()
        await chat.post("two", id="m2")
        assert await chat.post("one", id="m1") == "m1"
        for id in ("m1", "m2"):
            with pytest.raises(TurnConflict):
                await chat.post("another", id=id)
        model.opened.put_nowait(None)
        model.opened.put_nowait(None)
        one, same = await asyncio.gather(*sends)
        assert one == same
        assert (await chat.send("two", id="m2")).output == "2 two"


async def test_content_parts_are_accepted_as_in_a_prompt() -> None:
    model = Echo()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        await app.conversation("a", "k").send(["look", {"type": "image", "url": "x"}])
    [user] = [message for message in model.requests[0] if isinstance(message, User)]
    assert user.content == ("look", {"type": "image", "url": "x"})


async def test_keys_do_not_collide_and_long_ones_are_shortened() -> None:
    async with App([Agent(name="a", model=Echo()), Agent(name="a b", model=Echo())], MemoryStore()) as app:
        keys = [("a", "k"), ("a", "K"), ("a", "k k"), ("a", "k-k"), ("a b", "k"), ("a", "k" * 500), ("a", "k" * 501)]
        ids = [app.conversation(agent, key).run_id for agent, key in keys]
        assert len(set(ids)) == len(keys)
        assert ids[0] == "chat:a:k"
        assert re.fullmatch(r"chat:a:k{40}:[0-9a-f]{32}", ids[5])
        assert re.fullmatch(r"chat:a-b:k:[0-9a-f]{32}", ids[4])
        assert app.conversation("a", "k" * 80).run_id == f"chat:a:{'k' * 80}"
        assert len(app.conversation("a", "k" * 81).run_id) == len(ids[5])
        assert repr(app.conversation("a", "k")) == "Conversation('a', 'k')"
        assert app.conversation("a", "k" * 1_000).key == "k" * 1_000
        with pytest.raises(DefinitionError, match="give 1 to 1,000 characters"):
            app.conversation("a", "k" * 1_001)
        assert (await app.conversation("a", "ü" * 300).send("hello")).output == "1 hello"


async def test_bad_messages_are_refused_and_nothing_is_stored() -> None:
    async with App([Agent(name="a", model=Echo())], MemoryStore(), worker=False) as app:
        chat = app.conversation("a", "k")
        bad: Any
        for bad in ({"content": 7}, {"content": "x", "id": ""}, {"content": "x", "id": "turn:1"}):
            with pytest.raises(DefinitionError):
                await chat.send(**bad)
            with pytest.raises(DefinitionError):
                chat.check_message(**bad)
        chat.check_message("x", id="x", when="steer")
        with pytest.raises(DefinitionError, match="when"):
            await chat.send("x", when="later")  # type: ignore[arg-type]
        with pytest.raises(DefinitionError, match="key"):
            app.conversation("a", "")
        assert await chat.history() == []
        assert (await app.conversations()).runs == ()
        await app.submit("a", "go", run_id=chat.run_id)
        with pytest.raises(RunConflict):
            await chat.send("x")


async def test_a_conversation_needs_an_agent_without_phases() -> None:
    agent = Agent(name="a", phases=[Phase(name="p", model=Echo())])
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(TurnFailed, match="has phases"):
            await app.conversation("a", "k").send("x")


async def test_conversations_are_listed_apart_from_other_runs(store_url: str) -> None:
    agents = [Agent(name="a", model=Echo()), Agent(name="b", model=Echo())]
    async with App(agents, store_url) as app:
        await app.run("a", "go")
        for name, key in (("a", "1"), ("b", "2"), ("a", "3")):
            await app.conversation(name, key, caller_id="ann", labels={"team": key}).send("hello")
        page = await app.conversations(limit=2)
        rest = await app.conversations(cursor=page.cursor)
        assert [run.conversation for run in (*page.runs, *rest.runs)] == ["3", "2", "1"]
        assert [run.conversation for run in (await app.conversations(agent="a")).runs] == ["3", "1"]
        assert [run.conversation for run in (await app.conversations(labels={"team": "2"})).runs] == ["2"]
        assert {run.caller for run in page.runs} == {"ann"}


# -- a message during a turn ------------------------------------------------------------------------------------------


async def test_a_message_that_steers_joins_the_turn_and_shares_its_result(durable_store_url: str) -> None:
    model = Gate()
    agent = Agent(name="a", model=model)
    async with App([agent], durable_store_url) as app, App([agent], durable_store_url, worker=False) as other:
        chat = app.conversation("a", "k")
        first = asyncio.create_task(chat.send("one", id="m1"))
        await model.asked.get()
        await chat.post("and two", id="m2", when="steer")
        second = asyncio.create_task(other.conversation("a", "k").send("and two", id="m2", when="steer"))
        for _ in range(2):
            model.opened.put_nowait(None)
        one, two = await asyncio.gather(first, second)
        assert one == two
        assert (one.output, one.steps, one.turn_id) == ("2 and two", 2, "m1")
        assert await chat.send("and two", id="m2", when="steer") == one
        with pytest.raises(TurnConflict):
            await chat.send("other", id="m2", when="steer")


async def test_many_messages_may_join_a_turn_and_all_are_found_later() -> None:
    model = Gate()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        first = asyncio.create_task(chat.send("one", id="m0"))
        await model.asked.get()
        for number in range(1, 20):
            await chat.post(f"more {number}", id=f"m{number}", when="steer")
        for _ in range(4):
            model.opened.put_nowait(None)
        turn = await first
        await chat.send("next", id="next")
        for number in (1, 10, 19):
            assert await chat.result(f"m{number}") == turn
        assert (await chat.result("next")).number == 2


async def test_a_message_that_steers_nothing_begins_a_turn() -> None:
    async with App([Agent(name="a", model=Echo())], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        assert (await chat.send("one", when="steer")).output == "1 one"
        await app.send(chat.run_id, "two", id="m2")
        assert (await chat.result("m2")).output == "2 two"


@tool(effect="pure")
async def look() -> str:
    return "seen"


async def test_a_message_that_interrupts_ends_the_turn_at_its_next_step_and_goes_first() -> None:
    model = Gate(one=tool_reply(call("1", "look")))
    async with App([Agent(name="a", model=model, tools=[look])], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        first = asyncio.create_task(chat.send("one"))
        await model.asked.get()
        queued = asyncio.create_task(chat.send("two"))
        interrupts = asyncio.create_task(chat.send("stop", when="interrupt"))
        assert app.store is not None
        while len((await app.store.load(chat.run_id, after=END)).mail) < 2:
            await app.store.wait_for_change(timedelta(seconds=0.05))
        for _ in range(3):
            model.opened.put_nowait(None)
        with pytest.raises(TurnFailed, match="interrupted by the next message"):
            await first
        assert [(await turn).number for turn in (interrupts, queued)] == [2, 3]
        assert [turn.status for turn in await chat.history()] == ["interrupted", "done", "done"]
    assert [type(message) for message in model.requests[1]] == [User, Reply, ToolResult, User]


async def test_a_message_is_rejected_while_a_turn_is_in_progress_or_queued() -> None:
    model = Gate()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        first = asyncio.create_task(chat.send("one", when="reject"))
        await model.asked.get()
        with pytest.raises(ConversationBusy):
            await chat.send("two", when="reject")
        model.opened.put_nowait(None)
        await first
        model.opened.put_nowait(None)
        assert (await chat.send("two", when="reject")).output == "2 two"
    async with App([Agent(name="a", model=model)], MemoryStore(), worker=False) as app:
        chat = app.conversation("a", "k")
        await chat.post("one")
        with pytest.raises(ConversationBusy):
            await chat.post("two", when="reject")


# -- failures, bounds and waits ---------------------------------------------------------------------------------------


@tool(on_error="raise")
async def break_down() -> str:
    raise ValueError("broken")


async def test_a_failed_turn_leaves_the_conversation_usable(store_url: str) -> None:
    replies: dict[str, Reply | Exception] = {
        "error": ValueError("no such model"),
        "tool": tool_reply(call("1", "look"), call("2", "break_down")),
        "loop": tool_reply(call("1", "look")),
    }
    model = Echo(**replies)
    agent = Agent(name="a", model=model, tools=[look, break_down], bounds=Bounds(max_steps=1))
    async with App([agent], store_url) as app:
        chat = app.conversation("a", "k")
        for text, error in [("error", "no such model"), ("tool", "broken"), ("loop", "took 1 steps without")]:
            with pytest.raises(TurnFailed, match=error):
                await chat.send(text, id=text)
            with pytest.raises(TurnFailed, match=error):
                await chat.send(text, id=text)
        assert (await chat.send("fine")).output == "4 fine"
        history = await chat.history()
        assert [turn.status for turn in history] == ["failed"] * 3 + ["done"]
        assert history[0].messages == (User("error"),)
        results = [message for message in history[1].messages if isinstance(message, ToolResult)]
        assert [result.call_id for result in results] == ["1", "2"]
        assert results[1].content == CLOSED_CALL
        assert (await app.get(chat.run_id)).strikes == 0
    asked = [message for message in model.requests[-1] if isinstance(message, Reply)]
    assert sum(len(reply.tool_calls) for reply in asked) == sum(
        isinstance(message, ToolResult) for message in model.requests[-1]
    )


async def test_a_turn_that_waits_for_approval_continues_after_the_answer(durable_store_url: str) -> None:
    @tool(approval=True)
    async def pay() -> str:
        return "paid"

    agent = Agent(name="a", model=Echo(buy=tool_reply(call("1", "pay"))), tools=[pay])
    async with App([agent], durable_store_url) as app:
        chat = app.conversation("a", "k")
        with pytest.raises(RunWaiting, match="approval of pay") as raised:
            await chat.send("buy", id="m1")
        await chat.post("and then?", id="m2")
        with pytest.raises(RunWaiting):
            await chat.send("and then?", id="m2")
        with pytest.raises(RunWaiting):
            await chat.close()
        await app.answer(chat.run_id, raised.value.calls[0].call_id, Approve())
        assert await follow(chat, "buy", "m1") == "1 buy"
        assert await follow(chat, "and then?", "m2") == "2 and then?"
        await chat.close()
        with pytest.raises(ConversationClosed):
            await chat.send("more")


async def follow(chat: Conversation, text: str, id: str) -> Any:
    """The output of a turn whose wait was answered. Between the answer and the claim the run may still wait."""
    while True:
        try:
            return (await chat.send(text, id=id)).output
        except RunWaiting:
            await asyncio.sleep(0)


async def test_a_message_interrupts_a_turn_that_waits() -> None:
    @tool(approval=True)
    async def pay() -> str:
        raise AssertionError("not approved")

    model = Echo(buy=tool_reply(call("1", "pay"), call("2", "look")))
    async with App([Agent(name="a", model=model, tools=[pay, look])], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        for turn in range(2):  # the second approval is not answered by what the first left behind
            with pytest.raises(RunWaiting):
                await chat.send("buy", id=f"buy{turn}")
            assert (await chat.send("never mind", when="interrupt")).output.endswith("never mind")
            assert await app.pending() == []
            with pytest.raises(TurnFailed, match="interrupted"):
                await chat.send("buy", id=f"buy{turn}")
    results = [message.content for message in model.requests[-1] if isinstance(message, ToolResult)]
    assert results == [CLOSED_CALL, "seen"] * 2


async def test_a_turn_that_sleeps_is_waited_for() -> None:
    model = Echo(rest=tool_reply(call("1", "sleep", seconds=0.05)))
    async with App([Agent(name="a", model=model, tools=[sleep])], MemoryStore()) as app:
        assert (await app.conversation("a", "k").send("rest")).output == "1 rest"


async def test_bounds_and_repeated_calls_count_per_turn() -> None:
    model = Echo(work=tool_reply(call("1", "look")))
    bounds = Bounds(max_steps=2, max_repeats=1)
    async with App([Agent(name="a", model=model, tools=[look], bounds=bounds)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        turns = [await chat.send("work") for _ in range(4)]
        assert [turn.steps for turn in turns] == [2] * 4
        assert (await app.get(chat.run_id)).steps == 8


async def test_calls_that_an_earlier_turn_ended_with_are_not_repeated_calls() -> None:
    model = Echo(work=tool_reply(call("1", "look")))
    bounds = Bounds(max_steps=1, max_repeats=1)
    async with App([Agent(name="a", model=model, tools=[look], bounds=bounds)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        for _ in range(2):
            with pytest.raises(TurnFailed, match="took 1 steps without"):
                await chat.send("work")


async def test_the_runtime_of_a_turn_is_bounded_and_the_next_has_all_of_it() -> None:
    class Slow(Echo):
        async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
            if list_texts(messages)[-1] == "slow":
                await asyncio.sleep(60)
            return await super().__call__(messages, tools)

    agent = Agent(name="a", model=Slow(), bounds=Bounds(max_runtime=timedelta(seconds=1)))
    async with App([agent], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        with pytest.raises(TurnFailed, match="max_runtime"):
            await chat.send("slow")
        assert (await chat.send("quick")).output == "2 quick"


# -- compaction -------------------------------------------------------------------------------------------------------


async def test_compaction_keeps_the_results_of_earlier_turns(store_url: str) -> None:
    async def compact(history: Sequence[Any]) -> list[Any] | None:
        return [User("(summary)"), history[-1]] if len(history) > 5 else None

    async with App([Agent(name="a", model=Echo(), compact=compact)], store_url) as app:
        chat = app.conversation("a", "k")
        for number in range(12):
            await chat.send(f"text {number}", id=f"m{number}")
        history = await chat.history()
        assert [turn.prompt for turn in history] == [f"text {number}" for number in range(12)]
        assert all(str(turn.output).endswith(turn.prompt) for turn in history)
        assert [(await chat.send(f"text {n}", id=f"m{n}")).number for n in (0, 3, 11)] == [1, 4, 12]
        assert (await app.get(chat.run_id)).steps == 12
        with pytest.raises(CheckpointError, match="cannot be forked at turn 1"):
            await chat.fork(1)


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_a_closed_conversation_refuses_messages_and_keeps_its_results(durable_store_url: str) -> None:
    agent = Agent(name="a", model=Echo())
    async with App([agent], durable_store_url, worker=False) as app:
        chat = app.conversation("a", "k")
        await chat.close()  # nothing was sent
        turn = await chat.send("one", id="m1")
        await chat.post("two", id="m2")
        await chat.close()
        await chat.close()
        assert (await app.get(chat.run_id)).status is RunStatus.DONE
        with pytest.raises(ConversationClosed):
            await chat.send("three")
        assert await chat.send("one", id="m1") == turn
        assert (await chat.result("m2")).output == "2 two"
        assert (await app.get(chat.run_id)).expires_at is not None


async def test_a_message_that_arrives_while_the_conversation_closes_is_answered() -> None:
    store = MemoryStore()
    probe = ProbeStore(store)
    async with App([Agent(name="a", model=Echo())], probe, worker=False) as app:
        chat = app.conversation("a", "k")
        await chat.send("one")

        async def post_late(method: str) -> None:
            if method == "release":
                probe.before = None
                body = msgspec.json.encode(TurnMessage(content="late"))
                await store.post(chat.run_id, Mail(mail_id="late", topic=TURN_TOPIC, body=body))

        probe.before = post_late
        await chat.close()
        assert (await chat.result("late")).output == "2 late"
        assert (await app.get(chat.run_id)).status is RunStatus.DONE


@pytest.mark.parametrize("before", [0, 1])
async def test_an_error_that_is_not_of_the_turn_is_raised_and_the_message_is_answered_later(before: int) -> None:
    probe = ProbeStore(MemoryStore())
    async with App([Agent(name="a", model=Echo())], probe, worker=False) as app:
        chat = app.conversation("a", "k")
        for _ in range(before):
            await chat.send("one")

        async def fail_once(method: str) -> None:
            if method == "claim":
                probe.before = None
                raise StoreUnavailable("away for a moment")

        probe.before = fail_once
        with pytest.raises(StoreUnavailable, match="for a moment"):
            await chat.send("two", id="m2")
        assert (await chat.result("m2")).output == f"{before + 1} two"


@pytest.mark.parametrize(
    ("release", "error", "text"),
    [
        (Release(status=RunStatus.PARKED, reason="in doubt: pay (c1)"), RunParked, "pay"),
        (Release(status=RunStatus.CANCELLED), RunCancelled, "conversation chat:a:k was cancelled"),
        (Release(status=RunStatus.FAILED, reason="ValueError: no"), RunFailed, "no"),
        (Release(status=RunStatus.DONE), ConversationClosed, "done"),
    ],
)
async def test_a_process_that_executes_nothing_reads_why_a_conversation_stopped(
    release: Release, error: type[Exception], text: str
) -> None:
    store, agent = MemoryStore(), Agent(name="a", model=Echo())
    async with RunClient.open(store, {"a": agent}) as client:
        chat = client.conversation("a", "k")
        assert await chat.post("one", id="m1") == "m1"
        claim = await store.claim(chat.run_id, await add_worker(store))
        await store.release(claim, msgspec.structs.replace(release, retention=timedelta(days=1)))
        with pytest.raises(error, match=text):
            await chat.result("m1")


async def test_a_turn_in_progress_is_in_the_history() -> None:
    model = Gate()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        send = asyncio.create_task(chat.send("one", id="m1"))
        await model.asked.get()
        [turn] = await chat.history()
        assert (turn.turn_id, turn.number, turn.status, turn.prompt) == ("m1", 1, "running", "one")
        assert (turn.output, turn.error, turn.usage, turn.steps, turn.ended_at) == (None, "", Usage(), 0, None)
        assert turn.messages == (User("one"),)
        model.opened.put_nowait(None)
        assert [await send] == await chat.history()


async def test_a_cancelled_conversation_ends() -> None:
    model = Gate()
    async with App([Agent(name="a", model=model)], MemoryStore()) as app:
        chat = app.conversation("a", "k")
        send = asyncio.create_task(chat.send("one"))
        await model.asked.get()
        await app.cancel(chat.run_id)
        with pytest.raises(RunCancelled):
            await send
        with pytest.raises(ConversationClosed, match="cancelled"):
            await chat.send("two")


async def test_retention_keeps_a_conversation_that_waits_and_removes_a_closed_one() -> None:
    settings = CheckpointSettings(retention=Retention(done=timedelta(0)))
    async with App([Agent(name="a", model=Echo())], MemoryStore(), checkpoint=settings) as app:
        chat = app.conversation("a", "k")
        await chat.send("one")
        assert app.store is not None
        await app.store.purge()
        assert (await chat.send("two")).output == "2 two"
        await chat.close()
        with pytest.raises(RunNotFound):
            await app.get(chat.run_id)


async def test_an_erased_conversation_is_gone_and_its_key_free(store_url: str) -> None:
    model = Gate()
    async with App([Agent(name="a", model=model)], store_url) as app:
        chat = app.conversation("a", "k")
        send = asyncio.create_task(chat.send("one", id="m1"))
        await model.asked.get()
        await chat.erase()
        with pytest.raises((RunCancelled, RunNotFound)):
            await send
        assert await chat.history() == []
        model.opened.put_nowait(None)
        assert (await chat.send("another", id="m1")).output == "1 another"


async def test_a_sender_is_told_that_its_conversation_was_erased_although_another_one_has_begun() -> None:
    agents, inner = {"a": Agent(name="a", model=Echo())}, MemoryStore()
    store = ProbeStore(inner)
    asks_again, begun_again = asyncio.Event(), asyncio.Event()

    async def hold(method: str) -> None:
        if method == "get_record" and "post" in store.calls:
            asks_again.set()
            await begun_again.wait()

    store.before = hold
    async with RunClient.open(inner, agents) as other, RunClient.open(store, agents) as sender:
        send = asyncio.create_task(sender.conversation("a", "k").send("one", id="m1"))
        await asks_again.wait()
        chat = other.conversation("a", "k")
        await chat.erase()
        await chat.post("another", id="m2")
        begun_again.set()
        async with asyncio.timeout(60):
            with pytest.raises(TurnNotFound):
                await send


# -- forks ------------------------------------------------------------------------------------------------------------


async def test_a_fork_continues_with_the_turns_before_it(store_url: str) -> None:
    async with App([Agent(name="a", model=Echo())], store_url) as app:
        chat = app.conversation("a", "k", caller_id="ann")
        for number in (1, 2, 3):
            await chat.send(f"text {number}", id=f"m{number}")
        before = await chat.history()
        fork = await chat.fork(2, key="other")
        assert (await fork.send("on")).output == "3 on"
        assert [turn.prompt for turn in await fork.history()] == ["text 1", "text 2", "on"]
        assert (await fork.send("text 2", id="m2")).number == 2
        edited = await chat.fork(2, edited="changed", key="edited")
        again = await chat.fork(2, edited="changed", key="edited")
        assert (await edited.result("m2")).output == "2 changed"
        assert [turn.turn_id for turn in await again.history()] == ["m1", "m2"]
        assert await chat.history() == before
        with pytest.raises(RunConflict):
            await chat.fork(1, key="other")
        with pytest.raises(CheckpointError, match="cannot be forked at turn 9: its journal has 1, 2, 3"):
            await chat.fork(9)
        empty = app.conversation("a", "empty")
        await empty.begin()
        with pytest.raises(CheckpointError, match="cannot be forked at turn 1: its journal has none"):
            await empty.fork(1)
        refused: Any = 7
        with pytest.raises(DefinitionError):
            await chat.fork(2, edited=refused, key="refused")
        with pytest.raises(RunNotFound):
            await app.get(app.conversation("a", "refused").run_id)
        with pytest.raises(CheckpointError, match="is a conversation"):
            await app.fork(chat.run_id, 1)
        assert (await app.get(fork.run_id)).caller == "ann"


async def test_a_fork_has_a_copy_of_the_entries_of_its_turns() -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=Echo())], store, worker=False) as app:
        chat = app.conversation("a", "k")
        for number in (1, 2, 3):
            await chat.send(f"text {number}", id=f"m{number}")
        whole = (await store.load(chat.run_id)).entries
        begins = [entry.seq for entry in whole if entry.kind is EntryKind.INPUT]
        ends = [entry.seq for entry in whole if entry.kind is EntryKind.TURN]
        for at_turn, edited, end, turns in [
            (2, None, ends[1] + 1, 2),
            (3, "x", begins[2], 2),
            (1, None, ends[0] + 1, 1),
        ]:
            fork = Conversation(chat._agent, f"{at_turn}", {}, app._stored, app._host)
            await copy_turns(store, chat.run_id, fork._info, at_turn, include=edited is None)
            stored = await store.load(fork.run_id)
            assert list(stored.entries[1:]) == list(whole[1:end])
            progress = decode(stored.record.progress, Progress)
            assert (progress.turns, progress.turn, progress.steps) == (turns, None, turns)
            assert progress.recent_turns == {f"m{n + 1}": begins[n] for n in range(turns)}
