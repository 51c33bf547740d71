"""Drafts: the text of a reply in progress, in the executing process and from another App on the same store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from tests.core.null_listener import NullListener
from tests.runtime.streams.watching import CountingStore, StreamingModel, collect, get_types, is_text, look, wait_for
from tests.scripted_model import call, tool_reply

from holdfast import Agent, App, Reply, User, emit_text
from holdfast.checkpoint.record import StoredRun
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import failover
from holdfast.core.agents.retry import Retry
from holdfast.core.redaction import Redactor
from holdfast.core.run.info import RunInfo
from holdfast.events import (
    Event,
    ReplyAdded,
    StatusChanged,
    TextDelta,
)
from holdfast.stores.memory import MemoryStore
from holdfast.stores.wrapper import StoreWrapper
from holdfast.testing.manual_clock import ManualClock


async def test_text_is_seen_at_once_in_the_executing_process(store_url: str) -> None:
    model = StreamingModel("Hel", "lo \ud83d")
    async with App([Agent(name="a", model=model)], store_url) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            model.release()
            assert (await wait_for(events, is_text)) == TextDelta(run_id=run_id, text="Hel")
            async with aclosing(app.events(run_id)) as late:
                assert (await wait_for(late, is_text)) == TextDelta(run_id=run_id, text="Hel")
                model.release()
                assert (await wait_for(late, is_text)) == TextDelta(run_id=run_id, text="lo ?")
            assert (await wait_for(events, is_text)) == TextDelta(run_id=run_id, text="lo ?")
            model.release()
            assert get_types(await collect(events)) == ["reply", "step_finished", "output"]


async def test_text_is_seen_from_another_process_through_the_store(durable_store_url: str) -> None:
    model = StreamingModel("Hel", "lo")
    agent = Agent(name="a", model=model)
    async with App([agent], durable_store_url) as app, App([], durable_store_url, worker=False) as other:
        run_id = await app.submit("a", "go")
        async with aclosing(other.events(run_id)) as events:
            model.release()
            assert (await wait_for(events, lambda event: event.type == "reasoning_delta")).cursor is None
            assert (await wait_for(events, is_text)) == TextDelta(run_id=run_id, text="Hel")
            model.release()
            assert (await wait_for(events, is_text)) == TextDelta(run_id=run_id, text="lo")
            model.release()
            rest = [event for event in await collect(events) if not isinstance(event, StatusChanged)]
            assert get_types(rest) == ["reply", "step_finished", "output"]
            assert get_types(rest, durable=False) == [], "a draft whose reply was recorded is not retracted"


async def test_drafts_that_no_other_process_asks_for_are_not_written() -> None:
    store = CountingStore()
    model = StreamingModel("Hel", "lo")
    async with App([Agent(name="a", model=model)], store) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            model.release(3)
            await collect(events)
    assert store.drafts == 0


async def test_the_text_of_a_model_that_fails_is_retracted() -> None:
    model = StreamingModel("Hel", "lo")
    retry = Retry(initial_delay=timedelta(milliseconds=1))
    async with App([Agent(name="a", model=model, retry=retry)], "memory:") as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            model.release()
            await wait_for(events, is_text)
            model.errors.append(TimeoutError("slow"))
            model.release()
            await wait_for(events, lambda event: event.type == "draft_retracted")
            model.release(3)
            rest = await collect(events)
            assert "".join(event.text for event in rest if isinstance(event, TextDelta)) == "Hello"


async def test_a_chain_of_models_retracts_the_text_of_the_one_that_failed() -> None:
    first, second = StreamingModel("wrong"), StreamingModel("right")
    async with App([Agent(name="a", model=failover(first, second))], "memory:") as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            first.release()
            assert (await wait_for(events, is_text)) == TextDelta(run_id=run_id, text="wrong")
            first.errors.append(TimeoutError("slow"))
            first.release()
            await wait_for(events, lambda event: event.type == "draft_retracted")
            second.release()
            assert (await wait_for(events, is_text)) == TextDelta(run_id=run_id, text="right")
            second.release(2)
            await collect(events)


class GatedStore(StoreWrapper):
    """Reads no journal while its gate is closed."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        await self.gate.wait()
        return await super().load(run_id, after=after)


async def test_a_draft_whose_reply_was_compacted_away_before_it_was_read_is_retracted() -> None:
    store, written, rewritten, finish = GatedStore(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def compact(messages: Sequence[Any]) -> Sequence[Any] | None:
        return [User("so far")] if len(messages) == 3 and messages[0] == User("go") else None

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        if messages[0] == User("go"):
            await emit_text("let me see")
            await written.wait()
            return tool_reply(call("1", "look", city="Rome"), text="let me see")
        if len(messages) == 1:
            return tool_reply(call("2", "look", city="Oslo"), text="and Oslo")
        rewritten.set()
        await finish.wait()
        return Reply(text="done")

    async with App([Agent(name="a", model=model, tools=[look], compact=compact)], store) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            await wait_for(events, is_text)
            store.gate.clear()
            written.set()
            await rewritten.wait()
            store.gate.set()
            seen = [event.type async for event in _take_until(events, "step_finished")]
            finish.set()
            seen = [kind for kind in seen if kind not in ("status", "step_started")]
            assert seen[:3] == ["draft_retracted", "history_rewritten", "reply"]
            assert "draft_retracted" not in [event.type for event in await collect(events)]


async def _take_until(events: AsyncIterator[Event], kind: str) -> AsyncIterator[Event]:
    async for event in events:
        yield event
        if event.type == kind:
            return


class UnclosedStore(StoreWrapper):
    """A store in memory that two Apps use: it stays open when one of them closes it."""

    async def close(self) -> None: ...


async def test_the_draft_of_a_recorded_reply_is_removed_from_the_store() -> None:
    clock, model, gate = ManualClock(), StreamingModel("Hel", "lo"), asyncio.Event()

    class Listener(NullListener):
        async def on_output(self, info: RunInfo, output: Any) -> None:
            await gate.wait()  # the run has not ended, and its reply is recorded

    shared = UnclosedStore(MemoryStore(clock=clock))
    async with (
        App([Agent(name="a", model=model)], shared, listener=Listener(), clock=clock) as app,
        App([], shared, worker=False, clock=clock) as other,
    ):
        run_id = await app.submit("a", "go")
        async with aclosing(other.events(run_id)) as events:
            watching = asyncio.create_task(collect(events))
            await clock.advance(timedelta(seconds=2))
            model.release()
            await clock.advance(timedelta(seconds=2))
            drafts = [await shared.read_draft(run_id)]
            model.release(2)
            await clock.advance(timedelta(seconds=2))
            steps = (await app.get(run_id)).steps
            drafts.append(await shared.read_draft(run_id))
            gate.set()
            await clock.advance(timedelta(seconds=2))
            assert "reply" in get_types(await watching)
    assert steps == 1
    assert [draft is not None and b"Hel" in draft for draft in drafts] == [True, False]
    assert drafts[1] is None


async def test_a_reply_that_an_interruption_cut_off_is_retracted(store_url: str) -> None:
    model = StreamingModel("Hel", "lo")
    shared = UnclosedStore(MemoryStore()) if store_url == "memory:" else store_url
    async with App([], shared, worker=False) as other:
        async with App([Agent(name="a", model=model)], shared) as app:
            run_id = await app.submit("a", "go")
            events = other.events(run_id)
            model.release()
            await wait_for(events, is_text)
            closing = asyncio.create_task(app.shutdown(timedelta(0)))
            await wait_for(events, lambda event: event.type == "draft_retracted")
            await closing
        again = StreamingModel("Hello")
        again.release(2)
        async with App([Agent(name="a", model=again)], shared):
            rest = await collect(events)
        assert [event.text for event in rest if isinstance(event, ReplyAdded)] == ["Hello"]


async def test_drafts_are_redacted_and_hold_back_a_word_that_may_be_a_secret() -> None:
    model = StreamingModel("the key is sk-", "12345", " and more", " ")
    settings = CheckpointSettings(redact=Redactor(patterns=[r"sk-\d+"]))
    async with App([Agent(name="a", model=model)], "memory:", checkpoint=settings) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            shown = ""
            for due in ("the key is ", "the key is ", "the key is [redacted] and ", "the key is [redacted] and more "):
                model.release()
                while shown != due:
                    event = await wait_for(events, is_text)
                    assert isinstance(event, TextDelta)
                    shown += event.text
                    assert "sk-" not in shown
            model.release()
            assert get_types(await collect(events)) == ["reply", "step_finished", "output"]


async def test_text_is_not_seen_before_what_was_recorded_before_it() -> None:
    store, begin, written, finish = GatedStore(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        if len(messages) == 1:
            await emit_text("let me see")
            await begin.wait()
            return tool_reply(call("1", "look", city="Rome"), text="let me see")
        await emit_text("warm")
        written.set()
        await finish.wait()
        return Reply(text="warm")

    async with App([Agent(name="a", model=model, tools=[look])], store) as app:
        run_id = await app.submit("a", "go")
        async with aclosing(app.events(run_id)) as events:
            await wait_for(events, is_text)
            store.gate.clear()
            begin.set()
            await written.wait()
            store.gate.set()
            assert "step_finished" in [event.type async for event in _take_until(events, "text_delta")]
            finish.set()
            await collect(events)
