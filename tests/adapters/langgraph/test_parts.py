"""The parts of a durable graph one by one: values, requests of people, the journal, limits of model calls."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict

import pytest
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import BaseModel
from tests.adapters.langgraph.test_durable import Visits, build_line
from tests.probe_store import ProbeStore

from holdfast import App, Retry, RunWaiting, ToolCall, User, Value
from holdfast.adapters.langgraph import ToolPolicy, durable
from holdfast.adapters.langgraph.entries import (
    CODEC,
    CallInterrupted,
    CheckpointRows,
    GraphCallLog,
    GraphCallResult,
    RepliesCounted,
    ReplyEntry,
    make_batch,
)
from holdfast.adapters.langgraph.graph_stream import parse_streams, to_plain_data
from holdfast.adapters.langgraph.interrupts import _read_request
from holdfast.adapters.langgraph.run_saver import CountedReplies, _make_key
from holdfast.config import CheckpointSettings
from holdfast.core.errors import PayloadError, RunParked, SaveFailed, ShuttingDown
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.loop import PendingCall
from holdfast.core.ports import RatePermit
from holdfast.core.run.info import RunInfo
from holdfast.core.run.status import RunStatus
from holdfast.events import Event, ReasoningDelta, TextDelta
from holdfast.stores.memory import MemoryStore


class Place(BaseModel):
    city: str


@dataclass
class Visit:
    place: Place


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("text", "text"),
        ({1: (2, None)}, {"1": [2, None]}),
        ([Place(city="Lyon"), {"a": {1}}], [{"city": "Lyon"}, {"a": [1]}]),
        (Visit(Place(city="Lyon")), {"place": {"city": "Lyon"}}),
        ({"at": object}, {"at": str(object)}),
        (math.nan, "nan"),
        ("half \ud83d", "half ?"),
    ],
)
def test_a_value_of_the_graph_becomes_plain_data_or_its_text(value: Any, plain: Any) -> None:
    assert to_plain_data(value) == plain


@pytest.mark.parametrize(
    ("stream", "modes"),
    [
        (True, ("messages", "custom")),
        (False, ()),
        (["custom", "messages"], ("messages", "custom")),
        ({"updates"}, ("updates",)),
        ([], ()),
    ],
)
def test_the_option_stream_chooses_modes(stream: Any, modes: Any) -> None:
    assert parse_streams(stream) == modes


class Deltas:
    """Keeps the parts of replies."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            self.seen.append((event.type, event.text))

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


class ThinkingModel(BaseChatModel):
    """Thinks, then says a word."""

    @property
    def _llm_type(self) -> str:
        return "thinking"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        blocks: list[Any] = [
            {"type": "reasoning", "reasoning": "hm"},
            {"type": "image", "url": "x"},
            {"type": "reasoning"},
            {"type": "text", "text": "yes"},
        ]
        for block in blocks:
            yield ChatGenerationChunk(message=AIMessageChunk(content=[block]))


async def test_text_and_reasoning_of_a_stream_are_heard_and_whole_messages_are_not() -> None:
    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage("by a node"), await ThinkingModel().ainvoke("?")]}

    heard = Deltas()
    agent = durable(build_line(think, state=MessagesState).compile(name="thinker"), stream=["messages"])
    async with App([agent], "memory:", listener=heard) as app:
        await app.run(agent, "go")
    assert heard.seen == [("reasoning_delta", "hm"), ("text_delta", "yes")]


# -- what people are asked ------------------------------------------------------------------------------------------

PAY: dict[str, Any] = {"name": "pay", "args": {"cents": 7}}


def ask(*actions: Any, configs: Any = ()) -> dict[str, Any]:
    return {"action_requests": [*actions], "review_configs": configs}


def allow(name: str, *decisions: str) -> dict[str, Any]:
    return {"action_name": name, "allowed_decisions": [*decisions]}


@pytest.mark.parametrize(
    ("value", "approvals"),
    [
        ({"type": "tool_approval", **PAY, "description": "Pay?"}, [("i", "pay", {"cents": 7}, "Pay?", True)]),
        (ask(PAY), [("i", "pay", {"cents": 7}, "", True)]),
        (ask(PAY, {"name": "look", "args": {}, "description": "Look?"}),
         [("i-1", "pay", {"cents": 7}, "", True), ("i-2", "look", {}, "Look?", True)]),
        (ask(PAY, configs=[allow("pay", "approve")]), [("i", "pay", {"cents": 7}, "", False)]),
        (ask(PAY, configs=[allow("pay", "approve", "edit")]), [("i", "pay", {"cents": 7}, "", True)]),
        (ask(PAY, configs=[allow("look", "approve")]), [("i", "pay", {"cents": 7}, "", True)]),
        (ask(PAY, configs=[{"action_name": "pay"}, "odd"]), [("i", "pay", {"cents": 7}, "", True)]),
        ({"action_requests": [PAY]}, [("i", "pay", {"cents": 7}, "", True)]),
        ("where to?", []),
        ({"action_requests": "pay"}, []),
        ({"type": "tool_approval", "name": "pay"}, []),
        (ask(), []),
        (ask(PAY, {"name": "look"}), []),
        (ask(PAY, "look"), []),
        ({"question": 1}, []),
    ],
)  # fmt: skip
def test_an_interrupt_is_an_approval_of_each_action_or_a_question(value: Any, approvals: list[Any]) -> None:
    request = _read_request("i", value)
    if not approvals:
        [question] = request.questions
        assert (question.call_id, question.tool, question.arguments) == ("i", "interrupt", value)
        assert (question.kind, question.reason, question.is_editable) == ("question", str(value), True)
        assert request.combine(["an answer"]) == "an answer"
        return
    assert [(q.call_id, q.tool, q.arguments, q.reason, q.is_editable) for q in request.questions] == approvals
    assert {question.kind for question in request.questions} == {"approval"}
    answers = [{"type": "approve"}] * len(approvals)
    assert request.combine(answers) == (answers[0] if value.get("type") else {"decisions": answers})


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("in_tool", [True, False])
async def test_an_answer_is_consumed_before_the_code_that_reads_it(in_tool: bool, saves: bool) -> None:
    store, unread = ProbeStore(MemoryStore()), list[int]()

    async def find_city() -> str:
        city: str = interrupt("where to?")
        unread.append(len((await store.load("r")).mail))
        return city

    @tool
    async def travel() -> str:
        """Travel."""
        return await find_city()

    async def plan(state: MessagesState) -> dict[str, Any]:
        if in_tool:
            return {"messages": [AIMessage("", tool_calls=[{"name": "travel", "args": {}, "id": "c1"}])]}
        return {"messages": [AIMessage(await find_city())]}

    nodes = [plan, ToolNode([travel])] if in_tool else [plan]
    graph = build_line(*nodes, state=MessagesState).compile(name="traveller")
    agent = durable(graph, tools={"travel": ToolPolicy("pure")})
    tolerant = CheckpointSettings(require_durability=False)
    async with App([agent], store, checkpoint=tolerant, worker=False) as app:
        with pytest.raises(RunWaiting) as stopped:
            await app.run(agent, "go", run_id="r")
        await app.answer("r", stopped.value.calls[0].call_id, Value("Lyon"))
        if saves:
            result = await app.resume("r")
            assert str(result.output["messages"][-1].text) == "Lyon"
        else:
            store.fail("append", *[OSError("the disk is full")] * 100)
            with pytest.raises(SaveFailed, match="the disk is full"):
                await app.resume("r")
    assert unread == ([0] if saves else [])


# -- the journal ----------------------------------------------------------------------------------------------------


def make_entry(*call_ids: str, unknown: tuple[str, ...] = ()) -> ReplyEntry:
    calls = tuple(ToolCall(id=call_id, name="pay", arguments={}) for call_id in call_ids)
    return ReplyEntry(tool_calls=calls, tasks=tuple(f"task of {call_id}" for call_id in call_ids), unknown=unknown)


def make_result(call_id: str) -> GraphCallResult:
    return GraphCallResult(call_id=call_id, tool="pay", content=f"paid {call_id}", type="null", body=b"")


def test_the_log_of_calls_knows_which_are_pending_asked_and_finished() -> None:
    log = GraphCallLog(
        [
            User("go"),
            make_entry("a", "b", "c", unknown=("c",)),
            CallInterrupted("a", ("why?",)),
            CallInterrupted("b", ("how?",)),
            make_result("b"),
            make_result("b"),
            make_result("never announced"),
            CallInterrupted("c"),
            make_entry("c"),
        ]
    )
    assert (list(log.pending), log.tasks) == (["a", "c"], {"a": "task of a", "c": "task of c"})
    assert (log.interrupted, log.unknown, log.asked) == ({"a"}, {"c"}, {"a": ("why?",), "c": ()})
    assert [(call.id, result.content) for call, result in log.finished] == [("b", "paid b")]


def test_the_tables_of_a_run_are_made_from_its_journal() -> None:
    first = CheckpointRows(
        checkpoints=(("", "1", None, None, "t", b"old"), ("inner", "9", None, None, "t", b"")),
        values=(("", "lines", "v1", "t", b"v"),),
        items=(("", "lines", 7, 0, "t", b"i"),),
        writes=(("", "1", "task", -1, "p", "__error__", "t", b"old"), ("", "1", "task", 0, "p", "lines", "t", b"old")),
        starts_turn=True,
    )
    second = CheckpointRows(
        checkpoints=(("", "1", None, None, "t", b"new"),),
        writes=(("", "1", "task", -1, "p", "__error__", "t", b"new"), ("", "1", "task", 0, "p", "lines", "t", b"new")),
    )
    rows = CheckpointRows.from_batch(make_batch("run", [first, second]))
    assert (rows.values, rows.items, rows.starts_turn) == (first.values, first.items, False)
    assert [row[-1] for row in rows.checkpoints] == [b"new", b""]
    assert [(row[3], row[-1]) for row in rows.writes] == [(-1, b"new"), (0, b"old")]
    assert CheckpointRows.from_batch(make_batch("run", [first]), starts_turn=True) == first
    assert [each.has_own_checkpoint for each in (first, CheckpointRows())] == [True, False]
    assert not CheckpointRows(checkpoints=first.checkpoints[1:]).has_own_checkpoint
    assert CODEC.decode(CODEC.encode(first)) == first


def test_an_entry_of_another_version_is_not_read() -> None:
    with pytest.raises(PayloadError, match="this version cannot read a stored entry of a graph"):
        CODEC.decode(b'{"role":"of a later version"}')
    for entry in (make_entry("a"), make_result("a"), CallInterrupted("a", (1,)), RepliesCounted(keys=("k",))):
        assert CODEC.decode(CODEC.encode(entry)) == entry


def reply(text: str, reply_id: str | None = None) -> AIMessage:
    return AIMessage(text, id=reply_id)


def select(replies: CountedReplies, task_id: str, *values: Any) -> list[str]:
    return [str(each.text) for each in replies.select_new([("messages", value) for value in values], task_id)]


def test_a_reply_is_counted_once_by_its_id_or_within_the_task_of_its_subgraph() -> None:
    replies = CountedReplies([RepliesCounted(ns="", keys=("m1",))])
    said = [reply("one", "m1"), reply("two", "m2"), HumanMessage("no reply"), reply("three", "m2")]
    assert select(replies, "task", said, reply("four"), "no message") == ["three", "four"]
    assert select(replies, "task", [reply("same"), reply("same")]) == ["same", "same"]
    digests = CountedReplies([])
    counted = digests.select_new([("messages", [reply("same"), reply("same")])], "inner")
    assert len(counted) == 2
    digests.add(RepliesCounted(ns="outer:1|inner:2", keys=tuple(map(_make_key, counted))))
    assert select(digests, "1", [reply("same"), reply("same"), reply("same")]) == ["same"]
    assert select(digests, "2", [reply("same"), reply("other")]) == ["other"]
    assert select(digests, "3", [reply("same")]) == ["same"], "another task said it for itself"


# -- the loop -------------------------------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: list[Any]


def test_a_resolution_is_the_message_that_a_tool_node_gets() -> None:
    agent = durable(build_line(lambda state: {}, state=Chat).compile(name="chat"))
    loop: Any = get_loop(agent)
    for content, text, error in (("paid", "paid", False), ({"cents": 7}, '{"cents":7}', True)):
        call = PendingCall(call_id="c1@0a", tool="pay", arguments={})
        stored = loop.make_result(call, content, error=error)
        assert (stored.call_id, stored.tool, stored.content, stored.error) == ("c1@0a", "pay", text, error)
        message = loop._serde.loads_typed((stored.type, stored.body))
        assert isinstance(message, ToolMessage)
        assert (message.text, message.tool_call_id, message.status) == (text, "c1", "error" if error else "success")


def test_pending_and_finished_calls_are_read_from_the_journal() -> None:
    loop: Any = get_loop(durable(build_line(lambda state: {}, state=Chat).compile(name="chat")))
    history = [User("go"), make_entry("a", "b"), make_result("a")]
    assert [(call.call_id, call.tool, call.arguments) for call in loop.pending_calls(history)] == [("b", "pay", {})]
    assert [(call.call_id, call.content, call.error) for call in loop.finished_calls(history)] == [
        ("a", "paid a", False)
    ]
    both = loop.finished_calls(history, {"b": make_result("b")})
    assert [(call.call_id, call.tool, call.content) for call in both] == [
        ("a", "pay", "paid a"),
        ("b", "pay", "paid b"),
    ]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"messages": [HumanMessage("q"), AIMessage("an answer")]}, "an answer"),
        ({"messages": []}, ""),
        ({"messages": ["plain"]}, ""),
        ({"messages": "none"}, ""),
        ({"places": ["Lyon"]}, ""),
        ("text", ""),
        (None, ""),
    ],
)
def test_an_output_is_stored_with_the_text_of_its_last_message(output: Any, text: str) -> None:
    loop: Any = get_loop(durable(build_line(lambda state: {}, state=Chat).compile(name="chat")))
    stored = loop.dump_output(output)
    assert stored["text"] == text
    assert loop.load_output(stored) == output


def test_an_output_that_only_pickle_can_store_is_refused() -> None:
    loop: Any = get_loop(durable(build_line(lambda state: {}, state=Chat).compile(name="chat")))
    with pytest.raises(PayloadError, match="the output of the graph cannot be stored"):
        loop.dump_output({"made": lambda: None})


# -- limits of model calls ------------------------------------------------------------------------------------------


class Limiter:
    """Permits every call, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.settled: list[int] = []
        self.paused: list[timedelta] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def acquire(self, info: RunInfo, model: str, tokens: int) -> RatePermit | datetime | None:
        self.asked.append(model)
        self.loops.add(asyncio.get_running_loop())
        return RatePermit(key=model, at=datetime(2030, 1, 1, tzinfo=UTC), tokens=0)

    def settle(self, permit: RatePermit, tokens: int) -> None:
        self.settled.append(tokens)
        self.loops.add(asyncio.get_running_loop())

    def pause(self, permit: RatePermit, delay: timedelta) -> None:
        self.paused.append(delay)


def use(total: int) -> Any:
    return {"input_tokens": total - 1, "output_tokens": 1, "total_tokens": total}


@pytest.mark.parametrize("is_sync", [False, True])
async def test_model_calls_of_nodes_are_permitted_and_settled_one_by_one(is_sync: bool) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one", usage_metadata=use(12)), AIMessage("two")]))

    async def think(state: Visits) -> Visits:
        return {"places": [str((await model.ainvoke("?")).text)]}

    def think_sync(state: Visits) -> Visits:
        return {"places": [str(model.invoke("?").text)]}

    node, limiter = think_sync if is_sync else think, Limiter()
    agent = durable(build_line(node, node).compile(name="thinker"))
    async with App([agent], "memory:", rate_limits=limiter) as app:
        assert (await app.run(agent, "", inputs={})).output == {"places": ["one", "two"]}
    assert (limiter.asked, limiter.settled) == (["GenericFakeChatModel"] * 2, [12]), (
        "a reply without a count keeps its permit"
    )
    assert limiter.loops == {asyncio.get_running_loop()}, (
        "also for a sync node, whose callbacks have a loop of their own"
    )


async def test_a_model_of_a_node_is_not_asked_without_a_permit() -> None:
    class Closed(Limiter):
        async def acquire(self, info: RunInfo, model: str, tokens: int) -> RatePermit | datetime | None:
            raise RunParked("no limits", "the limits cannot be read")

    model = GenericFakeChatModel(messages=iter([AIMessage("one")]))

    async def think(state: Visits) -> Visits:
        return {"places": [str((await model.ainvoke("?")).text)]}

    agent = durable(build_line(think).compile(name="thinker"))
    async with App([agent], "memory:", rate_limits=Closed(), worker=False) as app:
        with pytest.raises(RunParked, match="the limits cannot be read"):
            await app.run(agent, "", inputs={})
    assert next(model.messages) == AIMessage("one"), "it was not asked"


async def test_a_failed_model_call_of_a_node_pauses_its_provider() -> None:
    class Failing(GenericFakeChatModel):
        model_name: str = "m1"

        def _get_ls_params(self, stop: Any = None, **kwargs: Any) -> Any:
            return {"ls_model_name": self.model_name}

        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            error = ConnectionError("busy")
            error.retry_after = 7  # type: ignore[attr-defined]
            raise error

    async def think(state: Visits) -> Visits:
        return {"places": [str((await Failing(messages=iter(())).ainvoke("?")).text)]}

    limiter = Limiter()
    agent = durable(build_line(think).compile(name="thinker"), retry=Retry(max_tries=1))
    async with App([agent], "memory:", rate_limits=limiter, worker=False) as app:
        await app.submit(agent, "", inputs={})
        await app.recover()
    assert (limiter.asked, limiter.settled) == (["m1"], [])
    assert limiter.paused == [timedelta(seconds=7)]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_an_error_while_a_node_waits_for_its_permit_reaches_the_run(is_sync: bool) -> None:
    called: list[str] = []

    class Counted(GenericFakeChatModel):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            called.append("model")
            return super()._generate(*args, **kwargs)

    class Broken(Limiter):
        async def acquire(self, info: RunInfo, model: str, tokens: int) -> RatePermit | datetime | None:
            self.asked.append(model)
            if len(self.asked) == 1:
                raise ShuttingDown("the limits cannot be read")
            return await super().acquire(info, model, tokens)

    async def think(state: Visits) -> Visits:
        return {"places": [str((await Counted(messages=iter([AIMessage("one")])).ainvoke("?")).text)]}

    def think_sync(state: Visits) -> Visits:
        return {"places": [str(Counted(messages=iter([AIMessage("one")])).invoke("?").text)]}

    agent = durable(build_line(think_sync if is_sync else think).compile(name="thinker"))
    async with App([agent], "memory:", rate_limits=Broken(), worker=False) as app:
        with pytest.raises(ShuttingDown, match="the limits cannot be read"):
            await app.run(agent, "", inputs={}, run_id="r")
        assert called == []
        assert (await app.get("r")).status is RunStatus.INTERRUPTED
        assert (await app.resume("r")).output == {"places": ["one"]}
    assert called == ["model"]
