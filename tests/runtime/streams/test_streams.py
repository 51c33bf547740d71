"""`App.events` on each store: what a watcher sees of a run, here and from another App on the same store."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.probe_store import ProbeStore
from tests.runtime.streams.watching import CountingStore, collect, get_types, look, wait_for
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.store_kinds import get_kind

from holdfast import Agent, App, Approve, Deferred, Phase, Reply, RunWaiting, User, tool
from holdfast import wait_for as signal
from holdfast.checkpoint.errors import InvalidCursor, RunDamaged, RunNotFound, StoreClosed, StoreUnavailable
from holdfast.checkpoint.record import StoredRun
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool_context import current_call
from holdfast.core.errors import ModelUnavailable
from holdfast.events import (
    CallDecided,
    CallsWaiting,
    ChildFinished,
    ChildStarted,
    HistoryRewritten,
    ReaderTooSlow,
    RetryScheduled,
    StatusChanged,
)
from holdfast.runtime.streams import subscription
from holdfast.stores.memory import MemoryStore
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.manual_clock import ManualClock

TURNS = (tool_reply(call("1", "look", city="Rome"), text="let me see"), "Rome is warm")
DURABLE_TYPES = ["message", "reply", "tool_call", "tool_result", "step_finished", "reply", "step_finished", "output"]


async def test_a_run_is_seen_from_beginning_to_end(store_url: str) -> None:
    async with App([Agent(name="a", model=ScriptedModel(*TURNS), tools=[look])], store_url) as app:
        run_id = await app.submit("a", "How is Rome?")
        live = await collect(app.events(run_id))
        again = await collect(app.events(run_id))
        assert get_types(live) == get_types(again) == DURABLE_TYPES
        assert [event for event in again if event.cursor] == [event for event in live if event.cursor]
        assert live[-1] == again[-1] == StatusChanged(run_id=run_id, status="done")
        for number, event in enumerate(live):
            if event.cursor is not None:
                rest = [each.cursor for each in live[number + 1 :] if each.cursor]
                assert [each.cursor for each in await collect(app.events(run_id, event.cursor)) if each.cursor] == rest


async def test_what_is_no_cursor_of_the_run_is_refused(store_url: str) -> None:
    async with App([Agent(name="a", model=ScriptedModel("done"))], store_url) as app:
        first = await app.run("a", "go")
        cursors = [event.cursor for event in await collect(app.events(first.run_id)) if event.cursor]
        other = await app.run("a", "go")
        behind = cursors[-1].rpartition("-")[0].rpartition("-")[0] + "-99-0"
        for wrong in ("", "x", "1-1", "-1-0-0", "٣-1-1", behind):
            with pytest.raises(InvalidCursor):
                await collect(app.events(first.run_id, wrong))
        with pytest.raises(InvalidCursor):
            await collect(app.events(other.run_id, cursors[0]))
        with pytest.raises(RunNotFound):
            await collect(app.events("nothing"))


async def test_a_damaged_run_is_reported(durable_store_url: str) -> None:
    async with App([Agent(name="a", model=ScriptedModel(*TURNS), tools=[look])], durable_store_url) as app:
        result = await app.run("a", "go")
    damage = get_kind(durable_store_url).damage
    assert damage is not None
    damage(durable_store_url, result.run_id, b"let me see")
    async with App([], durable_store_url) as app:
        with pytest.raises(RunDamaged):
            await collect(app.events(result.run_id))


async def test_waits_decisions_retries_and_children_are_events() -> None:
    child = Agent(name="child", model=ScriptedModel("from the child"))
    failures = iter([TimeoutError("slow"), None])

    @tool(effect="pure", retry=Retry(initial_delay=timedelta(milliseconds=1)))
    async def flaky() -> str:
        if (error := next(failures)) is not None:
            raise error
        return "fine"

    @tool(effect="pure")
    async def delegate() -> str:
        return str((await current_call().run(child, "do it")).output)

    @tool(approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    turns = (tool_reply(call("1", "flaky"), call("2", "delegate")), tool_reply(call("3", "pay", amount=3)), "done")
    async with App(
        [Agent(name="a", model=ScriptedModel(*turns), tools=[flaky, delegate, pay]), child], "memory:"
    ) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            retry = await wait_for(events, lambda event: isinstance(event, RetryScheduled))
            assert isinstance(retry, RetryScheduled)
            assert None not in (retry.cursor, retry.at)
            assert (retry.tool, retry.call_id, retry.attempt, retry.error) == ("flaky", "1", 1, "TimeoutError: slow")
            waiting = await wait_for(events, lambda event: isinstance(event, CallsWaiting))
            assert isinstance(waiting, CallsWaiting)
            assert waiting.cursor is None
            assert [(each.tool, each.arguments) for each in waiting.calls] == [("pay", {"amount": 3})]
            await app.answer(run_id, "3", Approve(comment="fine"), by="ann")
            rest = await collect(events)
        everything = await collect(app.events(run_id))
        [decision] = [event for event in rest if isinstance(event, CallDecided)]
        assert (decision.call_id, decision.tool, decision.decision.by) == ("3", "pay", "ann")
        assert get_types(rest) == ["decision", "tool_result", "step_finished", "reply", "step_finished", "output"]
        [started] = [event for event in everything if isinstance(event, ChildStarted)]
        [finished] = [event for event in everything if isinstance(event, ChildFinished)]
        assert (started.agent, started.call_id, finished.status) == ("child", "2", "done")
        assert get_types(await collect(app.events(started.child_run_id)))[-1] == "output"
        assert started.child_run_id == finished.child_run_id


async def test_the_token_of_a_deferred_call_is_for_its_tool_alone() -> None:
    tokens = []

    @tool
    async def order() -> Deferred:
        tokens.append(current_call().completion_token)
        return Deferred(reason="the warehouse")

    async with App(
        [Agent(name="a", model=ScriptedModel(tool_reply(call("1", "order")), "done"), tools=[order])], "memory:"
    ) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            waiting = await wait_for(events, lambda event: isinstance(event, CallsWaiting))
            assert isinstance(waiting, CallsWaiting)
            assert [each.has_token for each in waiting.calls] == [True]
            await app.complete_call(tokens[0], "sent")
            assert get_types(await collect(events))[-1] == "output"


async def test_phases_are_events() -> None:
    phases = [Phase(name="one", model=ScriptedModel("first")), Phase(name="two", model=ScriptedModel("second"))]
    async with App([Agent(name="a", phases=phases)], "memory:") as app:
        run_id = (await app.run("a", "go")).run_id
        assert get_types(await collect(app.events(run_id))) == [
            *("message", "reply", "step_finished", "phase_finished"),
            *("message", "reply", "step_finished", "phase_finished", "output"),
        ]


async def test_a_compaction_is_one_event_for_a_watcher_that_was_there() -> None:
    async def compact(messages: Sequence[Any]) -> Sequence[Any] | None:
        return [User("so far: Rome is warm")] if len(messages) == 3 else None

    turns = (TURNS[0], "done")
    script, gate = ScriptedModel(*turns), asyncio.Event()

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        if len(messages) == 1 and messages[0] != User("go"):
            await gate.wait()
            return Reply(text="done")
        return await script(messages, tools)

    async with App([Agent(name="a", model=model, tools=[look], compact=compact)], "memory:") as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            await wait_for(events, lambda event: event.type == "step_finished")
            gate.set()
            rest = await collect(events)
        [rewritten] = [event for event in rest if isinstance(event, HistoryRewritten)]
        assert [event.type for event in rewritten.events] == ["message"]
        assert get_types(rest) == ["history_rewritten", "reply", "step_finished", "output"]
        assert get_types(await collect(app.events(run_id))) == ["message", "reply", "step_finished", "output"]


async def test_a_failed_run_that_is_resumed_continues_its_stream(store_url: str) -> None:
    broken = [ValueError("broken")]

    async def model(messages: object, tools: object) -> Reply:
        if broken:
            raise broken.pop()
        return Reply(text="done")

    async with App([Agent(name="a", model=model)], store_url) as app:
        run_id = await app.submit("a", "go")
        failed = await collect(app.events(run_id))
        assert (get_types(failed), failed[-1].type) == (["message", "error"], "status")
        cursor = [event.cursor for event in failed if event.cursor][-1]
        await app.resume(run_id)
        assert get_types(await collect(app.events(run_id, cursor))) == ["reply", "step_finished", "output"]


async def test_a_fork_has_a_stream_of_its_own() -> None:
    async with App([Agent(name="a", model=ScriptedModel(*TURNS), tools=[look])], "memory:") as app:
        run_id = (await app.run("a", "go")).run_id
        fork = await app.fork(run_id, 1)
        events = await collect(app.events(fork))
        assert get_types(events) == DURABLE_TYPES
        assert {event.run_id for event in events} == {fork}


async def test_a_run_that_is_removed_at_its_end_ends_the_stream() -> None:
    gate = asyncio.Event()

    async def model(messages: object, tools: object) -> Reply:
        await gate.wait()
        return Reply(text="done")

    settings = CheckpointSettings(retention=Retention(done=timedelta(0)))
    async with App([Agent(name="a", model=model)], "memory:", checkpoint=settings) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            await wait_for(events, lambda event: isinstance(event, StatusChanged) and event.status == "running")
            gate.set()
            rest = await collect(events)
        assert isinstance(rest[-1], StatusChanged)
        assert rest[-1].status in ("done", "removed")


# -- many watchers --------------------------------------------------------------------------------------------------


async def test_many_watchers_of_one_run_share_their_reads() -> None:
    store = CountingStore()
    gate = asyncio.Event()

    async def model(messages: object, tools: object) -> Reply:
        await gate.wait()
        return Reply(text="done")

    async with App([Agent(name="a", model=model)], store) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as first:
            await wait_for(first, lambda event: event.type == "message")
            store.loads = 0
            watchers = [asyncio.create_task(collect(app.events(run_id))) for _ in range(1000)]
            joined = [asyncio.create_task(anext(app.events(run_id))) for _ in range(10)]
            await asyncio.gather(*joined)
            gate.set()
            seen = await asyncio.gather(*watchers)
    assert {tuple(get_types(events)) for events in seen} == {("message", "reply", "step_finished", "output")}
    assert store.loads < 50


async def test_a_run_that_no_watcher_reads_any_more_is_not_read() -> None:
    store, clock, reached, gate = CountingStore(), ManualClock(), asyncio.Event(), asyncio.Event()

    async def model(messages: object, tools: object) -> Reply:
        reached.set()
        await gate.wait()
        return Reply(text="done")

    async with App([Agent(name="a", model=model)], store, clock=clock) as app:
        run_id = await app.submit("a", "go")
        await reached.wait()
        async with aclosing(app.events(run_id)) as events:
            watching = asyncio.create_task(collect(events))
            await clock.advance(timedelta(seconds=5))
            assert store.loads > 0
            watching.cancel()
            await asyncio.wait([watching])
        store.loads = 0
        await clock.advance(timedelta(seconds=30))
        assert store.loads == 0
        gate.set()


async def test_a_run_that_does_not_change_is_read_once_a_second() -> None:
    store, clock = CountingStore(), ManualClock()
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "wait_for", name="go"))), tools=[signal])
    async with App([agent], store, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        async with aclosing(app.events("r")) as events:
            await wait_for(events, lambda event: isinstance(event, CallsWaiting))
            await clock.advance(timedelta(seconds=5))
            store.loads = 0
            await clock.advance(timedelta(seconds=10))
    assert 5 <= store.loads <= 10


async def test_a_watcher_that_shares_a_read_which_began_before_it_came_misses_nothing() -> None:
    reading, may_end, allowed = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)

    class SlowStore(StoreWrapper):
        """One read of a whole journal takes long."""

        async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
            found = await super().load(run_id, after=after)
            if is_slow and after == -1 and not reading.is_set():
                reading.set()
                await may_end.wait()
            return found

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        await allowed.acquire()
        return await script(messages, tools)

    script, is_slow = ScriptedModel(*TURNS), False
    async with App([Agent(name="a", model=model, tools=[look])], SlowStore(MemoryStore())) as app:
        run_id = await app.submit("a", "How is Rome?")
        async with aclosing(app.events(run_id)) as first:
            await wait_for(first, lambda event: event.type == "message")
            is_slow = True
            second = asyncio.create_task(collect(app.events(run_id)))
            await reading.wait()
            allowed.release()
            await wait_for(first, lambda event: event.type == "step_finished")
            third = asyncio.create_task(collect(app.events(run_id)))
            await asyncio.sleep(0)  # it shares the read of the second one
            may_end.set()
            allowed.release()
            assert [get_types(events) for events in await asyncio.gather(second, third)] == [DURABLE_TYPES] * 2


async def test_a_watcher_of_a_run_that_has_ended_does_not_end_the_stream_of_the_next_watcher() -> None:
    gate, broken, asked = asyncio.Event(), [ValueError("broken")], asyncio.Event()

    async def model(messages: object, tools: object) -> Reply:
        if broken:
            raise broken.pop()
        asked.set()
        await gate.wait()
        return Reply(text="done")

    async with App([Agent(name="a", model=model)], "memory:", worker=False) as app:
        with fails_with(ValueError, match="broken"):
            await app.run("a", "go", run_id="r")
        async with aclosing(app.events("r")) as early:
            await wait_for(early, lambda event: isinstance(event, StatusChanged) and event.status == "failed")
            resumed = asyncio.create_task(app.resume("r"))
            await asked.wait()
            async with aclosing(app.events("r")) as late:
                await wait_for(late, lambda event: isinstance(event, StatusChanged) and event.status == "running")
                gate.set()
                assert (await collect(late))[-1] == StatusChanged(run_id="r", status="done")
            await resumed


async def test_a_watcher_does_not_see_the_events_of_a_later_run_with_the_same_id() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "wait_for", name="go")), "done"), tools=[signal])
    async with App([agent], store, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        async with aclosing(app.events("r")) as events:
            await wait_for(events, lambda event: isinstance(event, CallsWaiting))
            await store.remove("r")
            await clock.advance(timedelta(milliseconds=1))
            await app.submit("a", "go again", run_id="r")
            rest = asyncio.create_task(collect(events))
            await clock.advance(timedelta(seconds=5))
            assert rest.done()
            assert await rest == [StatusChanged(run_id="r", status="removed")]


async def test_a_slow_watcher_is_disconnected_and_continues_with_its_cursor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "MAX_WAITING_BATCHES", 2)
    turns = [tool_reply(call(str(number), "look", city=str(number))) for number in range(8)]
    allowed = asyncio.Semaphore(0)
    script = ScriptedModel(*turns, "done")

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        await allowed.acquire()
        return await script(messages, tools)

    async with App([Agent(name="a", model=model, tools=[look])], "memory:") as app:
        run_id = await app.submit("a", "go")
        slow = app.events(run_id)
        first = await wait_for(slow, lambda event: event.type == "message")
        async with aclosing(app.events(run_id)) as fast:
            for _ in turns:
                allowed.release()
                await wait_for(fast, lambda event: event.type == "step_finished")
        with pytest.raises(ReaderTooSlow) as disconnected:
            await collect(slow)
        assert disconnected.value.cursor == first.cursor
        allowed.release()
        rest = await collect(app.events(run_id, disconnected.value.cursor))
        assert get_types(rest).count("step_finished") == len(turns) + 1


async def test_closing_the_app_wakes_a_watcher_that_waits() -> None:
    clock = ManualClock()
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("1", "wait_for", name="go"))), tools=[signal])
    async with App([agent], MemoryStore(clock=clock), worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        watching = asyncio.create_task(collect(app.events("r")))
        await clock.advance(timedelta(0))
    await asyncio.wait([watching], timeout=60)
    assert watching.done()
    with pytest.raises(StoreClosed):
        await watching


async def test_an_error_of_the_store_before_the_first_event_ends_the_stream() -> None:
    store = ProbeStore(MemoryStore())
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        run_id = await app.submit("a", "go")
        store.fail("get_record", StoreUnavailable("away for a moment"))
        with pytest.raises(StoreUnavailable, match="for a moment"):
            await collect(app.events(run_id))
        async with aclosing(app.events(run_id)) as events:
            assert (await anext(events)).type == "status"


async def test_closing_the_app_ends_its_streams() -> None:
    async def model(messages: object, tools: object) -> Reply:
        raise ModelUnavailable("away", timedelta(hours=1))

    async with App([Agent(name="a", model=model)], "memory:") as app:
        run_id = await app.submit("a", "go")
        events = app.events(run_id)
        await wait_for(events, lambda event: isinstance(event, StatusChanged) and event.status == "interrupted")
    with pytest.raises(StoreClosed):
        await collect(events)
