"""Graphs with `HoldfastSaver`: delta channels, subgraphs, time travel, interrupts, sync and async."""

import operator
from collections.abc import AsyncIterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from tests.adapters.langgraph.support import make_config

from holdfast.adapters.langgraph import HoldfastSaver


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def extend(lines: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*lines, *chain.from_iterable(writes)]


class Log(TypedDict):
    lines: Annotated[list[str], DeltaChannel(extend)]
    count: Annotated[int, operator.add]


def build_chat(rounds: int) -> StateGraph[Any]:
    def answer(state: Chat) -> Chat:
        return {"messages": [AIMessage(f"answer {len(state['messages'])}".ljust(300))]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_conditional_edges("answer", lambda state: END if len(state["messages"]) > rounds else "answer")
    return builder


def build_log(rounds: int) -> StateGraph[Any]:
    def append(state: Log) -> dict[str, Any]:
        return {"lines": [f"line {state['count']}"], "count": 1}

    builder = StateGraph(Log)
    builder.add_node("append", append)
    builder.add_edge(START, "append")
    builder.add_conditional_edges("append", lambda state: END if state["count"] >= rounds else "append")
    return builder


@pytest.fixture
async def saver(tmp_path: Path) -> AsyncIterator[HoldfastSaver]:
    async with HoldfastSaver.from_url(f"sqlite:{tmp_path / 'graph.db'}") as saver:
        yield saver


async def test_a_conversation_continues_in_another_process_and_from_an_earlier_checkpoint(
    durable_store_url: str,
) -> None:
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        graph = build_chat(3).compile(checkpointer=saver)
        first = await graph.ainvoke({"messages": [HumanMessage("hello")]}, make_config())
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        graph = build_chat(6).compile(checkpointer=saver)
        assert (await graph.aget_state(make_config())).values == first
        earlier = [state async for state in graph.aget_state_history(make_config())][1]
        branch = await graph.ainvoke(None, earlier.config)
        assert branch["messages"][:3] == first["messages"][:3]
        assert len(branch["messages"]) == 7
        states = [state async for state in graph.aget_state_history(make_config())]
        assert first in [state.values for state in states]


async def test_a_delta_channel_is_rebuilt_and_survives_prune(durable_store_url: str) -> None:
    expected = [f"line {number}" for number in range(12)]
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        graph = build_log(12).compile(checkpointer=saver)
        await graph.ainvoke({"lines": [], "count": 0}, make_config())
        assert (await graph.aget_state(make_config())).values["lines"] == expected
        histories = [state.values.get("lines", []) async for state in graph.aget_state_history(make_config())]
        assert histories[:13] == [expected[:count] for count in range(12, -1, -1)]
        await saver.aprune(["thread"])
        assert (await graph.aget_state(make_config())).values["lines"] == expected


async def test_a_delta_channel_with_snapshots_keeps_only_what_it_needs_after_prune(saver: HoldfastSaver) -> None:
    class Short(TypedDict):
        lines: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=4)]
        count: Annotated[int, operator.add]

    builder = StateGraph(Short)
    builder.add_node("append", lambda state: {"lines": [f"line {state['count']}"], "count": 1})
    builder.add_edge(START, "append")
    builder.add_conditional_edges("append", lambda state: END if state["count"] >= 11 else "append")
    graph = builder.compile(checkpointer=saver)
    await graph.ainvoke({"lines": [], "count": 0}, make_config())
    before = (await graph.aget_state(make_config())).values
    await saver.aprune(["thread"])
    assert (await graph.aget_state(make_config())).values == before
    assert len(before["lines"]) == 11
    assert len([found async for found in saver.alist(make_config())]) < 6


async def test_an_interrupt_in_a_subgraph_is_resumed_by_another_saver(durable_store_url: str) -> None:
    def build() -> StateGraph[Any]:
        def ask(state: Chat) -> Chat:
            return {"messages": [AIMessage(interrupt("how much?"))]}

        inner = StateGraph(Chat)
        inner.add_node("ask", ask)
        inner.add_edge(START, "ask")
        outer = StateGraph(Chat)
        outer.add_node("inner", inner.compile())
        outer.add_edge(START, "inner")
        return outer

    async with HoldfastSaver.from_url(durable_store_url) as saver:
        stopped = await build().compile(checkpointer=saver).ainvoke({"messages": [HumanMessage("hi")]}, make_config())
        assert [each.value for each in stopped["__interrupt__"]] == ["how much?"]
    async with HoldfastSaver.from_url(durable_store_url) as saver:
        finished = await build().compile(checkpointer=saver).ainvoke(Command(resume="7"), make_config())
        assert [message.content for message in finished["messages"]] == ["hi", "7"]


def test_a_sync_graph_keeps_its_thread(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'graph.db'}"
    with HoldfastSaver.from_url(url) as saver:
        graph = build_chat(3).compile(checkpointer=saver)
        finished = graph.invoke({"messages": [HumanMessage("hello")]}, make_config())
    with HoldfastSaver.from_url(url) as saver:
        graph = build_chat(3).compile(checkpointer=saver)
        assert graph.get_state(make_config()).values == finished
        assert len(list(graph.get_state_history(make_config(), limit=2))) == 2
