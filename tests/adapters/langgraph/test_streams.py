"""The streams of a durable graph as events."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.config import get_stream_writer
from langgraph.types import interrupt
from tests.adapters.langgraph.crash import RUN
from tests.adapters.langgraph.test_durable import Chat, Visits, build_line

from holdfast import App, RunWaiting
from holdfast.adapters.langgraph import durable
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import RunInfo
from holdfast.events import CustomEvent, Event, ReplyAdded


class Listener:
    """Keeps the custom events."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, CustomEvent):
            self.seen.append((event.name, event.value))

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


async def visit(state: Visits) -> Visits:
    get_stream_writer()({"half": True})
    return {"places": ["Lyon"]}


async def run_and_read(agent: Any, folder: Path, **options: Any) -> list[Event]:
    """Return the durable events of a run, as another process reads them."""
    url = f"sqlite:{folder / 'runs.db'}"
    async with App([agent], url, **options) as app:
        await app.run(agent, "", inputs={}, run_id=RUN)
    async with App([agent], url, worker=False) as app:
        return [event async for event in app.events(RUN) if event.cursor is not None]


def get_custom(events: list[Event]) -> list[tuple[str, Any]]:
    return [(event.name, event.value) for event in events if isinstance(event, CustomEvent)]


async def test_updates_and_what_nodes_write_are_durable_events(tmp_path: Path) -> None:
    listener = Listener()
    agent = durable(build_line(visit).compile(name="visits"), stream=["updates", "custom"])
    events = await run_and_read(agent, tmp_path, listener=listener)
    assert get_custom(events) == [("custom", {"half": True}), ("updates", {"node-0": {"places": ["Lyon"]}})]
    assert listener.seen == get_custom(events)
    steps = [event.step for event in events if isinstance(event, CustomEvent)]
    assert steps == [1, 1]


async def test_a_subgraph_is_named_by_the_path_of_its_events(tmp_path: Path) -> None:
    graph = build_line(build_line(visit).compile()).compile(name="visits")
    events = await run_and_read(durable(graph, stream=True), tmp_path)
    [event] = [event for event in events if isinstance(event, CustomEvent)]
    assert event.value == {"half": True}
    assert [part.partition(":")[0] for part in event.path] == ["node-0"]


async def test_messages_in_updates_are_plain_data_and_other_objects_their_text(tmp_path: Path) -> None:
    class Place:
        def __str__(self) -> str:
            return "a place"

    async def answer(state: Chat) -> dict[str, Any]:
        get_stream_writer()(Place())
        chat = GenericFakeChatModel(messages=iter([AIMessage("one two")]))
        return {"messages": [await chat.ainvoke("?")]}

    graph = build_line(answer, state=Chat).compile(name="chat")
    events = await run_and_read(durable(graph, stream=["updates", "custom", "messages"]), tmp_path)
    (custom, place), (updates, value) = get_custom(events)
    assert (custom, place, updates) == ("custom", "a place", "updates")
    assert value["node-0"]["messages"][0]["content"] == "one two"
    assert [event.text for event in events if isinstance(event, ReplyAdded)] == ["one two"]


async def test_a_watcher_gets_a_chunk_while_its_node_runs() -> None:
    seen = asyncio.Event()

    async def wait(state: Visits) -> Visits:
        get_stream_writer()("half")
        await seen.wait()
        return {"places": ["Lyon"]}

    agent = durable(build_line(wait).compile(name="visits"), stream=True)
    async with App([agent], "memory:") as app:
        await app.submit(agent, "", inputs={}, run_id=RUN)
        async for event in app.events(RUN):
            if isinstance(event, CustomEvent):
                seen.set()
        assert (await app.result(RUN)).output == {"places": ["Lyon"]}


async def test_a_graph_without_streams_records_none(tmp_path: Path) -> None:
    assert get_custom(await run_and_read(durable(build_line(visit).compile(name="visits")), tmp_path)) == []


async def test_an_interrupt_is_no_update() -> None:
    async def ask(state: Visits) -> Visits:
        return {"places": [interrupt("where to?")]}

    listener = Listener()
    agent = durable(build_line(ask).compile(name="visits"), stream=["updates"])
    async with App([agent], "memory:", listener=listener) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "", inputs={}, run_id=RUN)
    assert listener.seen == []


@pytest.mark.parametrize("stream", ["updates", ["debug"]])
def test_an_unknown_stream_is_refused(stream: Any) -> None:
    with pytest.raises(DefinitionError, match="use True, False, or a list of messages, updates, custom"):
        durable(build_line(visit).compile(name="visits"), stream=stream)
