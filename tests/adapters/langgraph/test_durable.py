"""`durable`: compiled graphs as agents of holdfast."""

import asyncio
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.errors import NodeTimeoutError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from tests.adapters.langgraph.crash import RUN, Crash
from tests.adapters.langgraph.graphs import USAGE, State, build_agent, nested, script, trip
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Bounds, Reply, Retry, RunInfo, ToolCall, current_call
from holdfast import tool as holdfast_tool
from holdfast.adapters.langgraph import ToolPolicy, durable, record_tool_call
from holdfast.core.errors import DefinitionError, PayloadError, RunLost, RunParked, Shutdown, StepsExceeded
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.messages import ToolResult, Usage
from holdfast.errors import ModelUnavailable, TurnFailed
from holdfast.events import Event, ReplyAdded, TextDelta
from holdfast.runtime.reading.transcript import Transcript
from holdfast.stores.memory import MemoryStore

Graph = CompiledStateGraph[Any, Any, Any, Any]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Visits(TypedDict):
    places: Annotated[list[str], operator.add]


def build_line(*nodes: Any, state: type = Visits) -> StateGraph[Any]:
    """Return a graph of these functions, one after the other."""
    builder: StateGraph[Any] = StateGraph(state)
    builder.add_sequence([(f"node-{number}", node) for number, node in enumerate(nodes)])
    builder.add_edge(START, "node-0")
    return builder


def get_tool_texts(output: dict[str, Any]) -> list[str]:
    return [str(message.text) for message in output["messages"] if isinstance(message, ToolMessage)]


# -- runs -----------------------------------------------------------------------------------------------------------


async def test_a_run_has_the_output_of_the_graph_and_the_usage_of_its_model() -> None:
    batches = [("look", "Lyon"), ("pay", "Lyon")]
    bare = await _without_run(build_agent(script(batches)).compile(), "go")
    agent = durable(build_agent(script(batches)).compile(), name="agent")
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "go")
    assert result.output == bare
    assert result.steps == 3
    assert result.usage == Usage(input_tokens=20, output_tokens=4, requests=2, tool_calls=2)


async def test_the_supersteps_of_a_subgraph_are_within_one_step_of_the_run() -> None:
    """The agent in the first node makes five: it asks its model three times, and calls tools twice."""
    async with App([nested], MemoryStore()) as app:
        result = await app.run(nested, "go")
        events = [event.type async for event in app.events(result.run_id)]
    assert (result.steps, events.count("step_finished")) == (2, 2)


async def test_a_reply_that_a_later_node_returns_again_is_counted_once() -> None:
    async def model(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage("warm", id="reply", usage_metadata=USAGE)]}

    async def review(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage("very warm", id="reply", usage_metadata=USAGE)]}

    agent = durable(build_line(model, review, state=Chat).compile(name="line"))
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "go")
    assert [message.text for message in result.output["messages"][1:]] == ["very warm"]
    assert result.usage == Usage(input_tokens=10, output_tokens=2, requests=1)


async def _without_run(graph: Graph, prompt: str) -> Any:
    return await graph.ainvoke({"messages": [HumanMessage(prompt)]})


@pytest.mark.parametrize("reply_id", [None, "m1"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_reply_of_a_subgraph_is_counted_once_over_a_crash(reply_id: str | None, depth: int) -> None:
    """Without an id there is nothing to know it by, and the outer graphs return it too."""
    crash = Crash("before the end")

    async def answer(state: State) -> State:
        return {"messages": [AIMessage("hi", usage_metadata=USAGE, id=reply_id)]}

    async def stop(state: State) -> dict[str, Any]:
        await crash.reach("before the end")
        return {}

    graph = build_line(answer, answer if reply_id is None else stop, stop, state=State)
    for _ in range(depth):
        graph = build_line(graph.compile(), state=State)
    result = await crash.run(durable(graph.compile(name="trip")))
    assert result.usage.requests == (2 if reply_id is None else 1)


async def test_a_worker_runs_what_was_submitted_and_another_process_reads_the_output() -> None:
    store = MemoryStore()
    async with App([trip], store) as app:
        run_id = await app.submit("trip", "go")
        output = (await app.result(run_id)).output
    async with App([trip], store, worker=False) as app:
        assert (await app.result(run_id)).output == output
    assert get_tool_texts(output)[-2:] == ["paid in Faro", "signed in Faro"]


async def test_a_reader_without_langgraph_sees_prompt_calls_results_and_replies() -> None:
    agent = durable(build_agent(script([("pay", "Lyon")])).compile(name="agent"))
    store = MemoryStore()
    async with App([agent], store) as app:
        run_id = (await app.run(agent, "go")).run_id
        items = Transcript("langgraph").read((await store.load(run_id)).entries)
    assert [(item.kind, item.text or item.content) for item in items if item.kind in ("user", "reply", "result")] == [
        ("user", "go"),
        ("reply", None),
        ("result", "paid in Lyon"),
        ("reply", "done"),
    ]


async def test_inputs_become_the_state_and_context_is_made_for_each_attempt() -> None:
    @dataclass
    class Context:
        run_id: str

    async def visit(state: Visits, runtime: Runtime[Context]) -> Visits:
        return {"places": [runtime.context.run_id]}

    agent = durable(
        build_line(visit).compile(name="visits"), context=lambda info: Context(info.run_id), bounds=Bounds(max_steps=1)
    )
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "", inputs={"places": ["Lyon"]}, run_id=RUN)
    assert result.output == {"places": ["Lyon", RUN]}


async def test_a_child_run_gets_its_inputs() -> None:
    async def note(state: Visits) -> Visits:
        return {"places": [*state["places"], "Bonn"]}

    visits = durable(build_line(note).compile(name="visits"))

    @holdfast_tool(effect="idempotent")
    async def travel() -> list[str]:
        """Travel."""
        result = await current_call().run(visits, inputs={"places": ["Lyon"]})
        return list(result.output["places"])

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        if isinstance(messages[-1], ToolResult):
            return Reply(text=str(messages[-1].content))
        return Reply(tool_calls=[ToolCall(id="c1", name="travel", arguments={})])

    async with App([Agent(name="guide", model=model, tools=[travel]), visits], "memory:") as app:
        assert (await app.run("guide", "go")).output == "['Lyon', 'Lyon', 'Bonn']"


async def test_a_function_may_make_the_input() -> None:
    def make_input(info: RunInfo) -> Visits:
        return {"places": [info.prompt_text.upper()]}

    agent = durable(build_line(lambda state: {"places": ["end"]}).compile(name="visits"), input=make_input)
    async with App([agent], MemoryStore()) as app:
        assert (await app.run(agent, "lyon")).output == {"places": ["LYON", "end"]}


async def test_a_message_that_is_sent_to_the_run_is_its_next_turn() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def answer(state: Chat) -> Chat:
        started.set()
        await go_on.wait()
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].text}")]}

    agent = durable(build_line(answer, state=Chat).compile(name="chat"))
    async with App([agent], MemoryStore()) as app:
        run_id = await app.submit("chat", "one")
        await started.wait()
        await app.send(run_id, "two")
        go_on.set()
        result = await app.result(run_id)
    texts = [message.text for message in result.output["messages"]]
    assert result.steps == 2
    assert texts == ["one", "answer to one", "two", "answer to two"]


async def test_a_graph_with_more_supersteps_than_its_bound_fails_and_one_with_as_many_ends() -> None:
    nodes = [lambda state: {"places": ["x"]}] * 3
    three = durable(build_line(*nodes).compile(name="three"), bounds=Bounds(max_steps=3))
    two = durable(build_line(*nodes).compile(name="two"), bounds=Bounds(max_steps=2))
    async with App([three, two], MemoryStore()) as app:
        assert (await app.run(three, "", inputs={"places": []})).steps == 3
        with fails_with(StepsExceeded):
            await app.run(two, "", inputs={"places": []})


async def test_a_sync_node_may_invoke_a_graph_that_has_checkpoints_of_its_own() -> None:
    inner = build_line(lambda state: {"places": ["inner"]}).compile(checkpointer=True)

    def visit(state: Visits) -> Visits:
        return {"places": inner.invoke({"places": []})["places"]}

    agent = durable(build_line(visit).compile(name="visits"))
    async with App([agent], MemoryStore()) as app:
        assert (await app.run(agent, "", inputs={"places": []})).output == {"places": ["inner"]}


async def test_a_watcher_sees_the_replies_and_their_text_as_it_arrives() -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("one two")]))

    async def answer(state: Chat) -> Chat:
        return {"messages": [await model.ainvoke(state["messages"])]}

    class Listener:
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, TextDelta):
                texts.append(event.text)

        async def on_output(self, info: RunInfo, output: Any) -> None: ...

        async def on_error(self, info: RunInfo, error: BaseException) -> None: ...

    texts: list[str] = []
    agent = durable(build_line(answer, state=Chat).compile(name="chat"), stream=True)
    async with App([agent], MemoryStore(), listener=Listener()) as app:
        run_id = (await app.run(agent, "go")).run_id
        events = [event async for event in app.events(run_id) if event.cursor is not None]
    assert texts == ["one", " ", "two"]
    assert [event.type for event in events] == ["message", "reply", "step_finished", "output"]
    assert [event.text for event in events if isinstance(event, ReplyAdded)] == ["one two"]


async def test_a_conversation_keeps_the_state_of_the_graph_and_continues_after_a_turn_that_failed() -> None:
    async def answer(state: Chat) -> Chat:
        last = str(state["messages"][-1].text)
        if last == "fail":
            raise ValueError("no")
        return {"messages": [AIMessage(f"{len(state['messages'])} {last}")]}

    agent = durable(build_line(answer, state=Chat).compile(name="chat"))
    async with App([agent], MemoryStore()) as app:
        chat = app.conversation("chat", "ada")
        await chat.send("one")
        with pytest.raises(TurnFailed):
            await chat.send("fail")
        turn = await chat.send("three")
    texts = [str(message.text) for message in turn.output["messages"]]
    assert texts == ["one", "1 one", "fail", "three", "4 three"]


# -- interruptions --------------------------------------------------------------------------------------------------


async def test_a_crash_repeats_no_finished_node_and_no_finished_call_of_a_batch() -> None:
    crash = Crash("slow", "second node")

    @tool
    async def quick() -> str:
        """Return at once."""
        await crash.reach("quick")
        return "quick"

    @tool
    async def slow() -> str:
        """Return after the other call."""
        await crash.reach("slow", results=1)
        return "slow"

    async def model(state: State) -> State:
        await crash.reach("model")
        calls: list[Any] = [{"name": name, "args": {}, "id": name} for name in ("quick", "slow")]
        return {"messages": [AIMessage("", tool_calls=calls)]}

    async def second(state: State) -> State:
        await crash.reach("second node")
        return {"messages": [AIMessage("done")]}

    graph = build_line(model, ToolNode([quick, slow]), second, state=State).compile(name="agent")
    result = await crash.run(durable(graph, tools={"slow": ToolPolicy("pure")}))
    assert Counter(crash.passed) == {"model": 1, "quick": 1, "slow": 2, "second node": 2}
    assert get_tool_texts(result.output) == ["quick", "slow"]


async def test_a_crash_repeats_no_finished_task_of_an_entrypoint() -> None:
    crash = Crash("second")

    @task
    async def visit(place: str) -> str:
        await crash.reach(place)
        return place.upper()

    @entrypoint()
    async def tour(places: list[str]) -> list[str]:
        return [await visit(place) for place in places]

    result = await crash.run(durable(tour, input=lambda info: ["first", "second", "third"]))
    assert result.output == ["FIRST", "SECOND", "THIRD"]
    assert crash.passed == ["first", "second", "second", "third"]


async def test_a_once_call_in_doubt_is_reported_to_the_model() -> None:
    crash = Crash("pay")
    result = await crash.run(durable(_build_paying(crash).compile(name="agent")))
    assert crash.passed == ["pay"]
    assert get_tool_texts(result.output) == [UNKNOWN_OUTCOME]


async def test_a_tool_node_that_handles_all_errors_does_not_swallow_the_end_of_a_run() -> None:
    crash, store = Crash("pay"), MemoryStore()
    agent = durable(_build_paying(crash).compile(name="agent"), tools={"pay": ToolPolicy(in_doubt="park")})
    with pytest.raises(RunParked, match="in doubt"):
        await crash.run(agent, store=store)
    async with App([agent], store, worker=False) as app:
        await app.unpark(RUN, {"c0-0": "paid after all"})
        assert get_tool_texts((await app.resume(RUN)).output) == ["paid after all"]
    assert crash.passed == ["pay"]


def _build_paying(crash: Crash) -> StateGraph[Any]:
    @tool
    async def pay(city: str) -> str:
        """Pay."""
        await crash.reach("pay")
        return "paid"

    builder = StateGraph(State)
    builder.add_sequence([("model", script([("pay", "Lyon")])), ("tools", ToolNode([pay], handle_tool_errors=True))])
    builder.add_edge(START, "model")
    return builder


@pytest.mark.parametrize("handled", [True, False])
async def test_an_error_of_a_tool_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture, handled: bool) -> None:
    @tool
    async def fail(city: str) -> str:
        """Fail."""
        raise KeyError(city)

    builder = build_agent(script([("fail", "Lyon")]), [fail])
    builder.nodes["tools"].runnable = ToolNode([fail], handle_tool_errors=handled)
    async with App([durable(builder.compile(name="trip"))], "memory:") as app:
        if handled:
            output = (await app.run("trip", "go", run_id="r")).output
            assert ["KeyError" in text for text in get_tool_texts(output)] == [True]
        else:
            with fails_with(KeyError):
                await app.run("trip", "go", run_id="r")
        assert 'holdfast_failed_calls_total{agent="trip",tool="fail"} 1' in await app.render_metrics()
    [line] = [record for record in caplog.records if record.name == "holdfast.tools"]
    assert line.levelname == "WARNING"
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], KeyError)
    assert line.exc_info[2] is not None


@pytest.mark.parametrize("city", ["half \ud83d", math.nan])
async def test_arguments_that_no_store_can_keep_are_reported_to_the_model(city: Any) -> None:
    called: list[Any] = []

    @tool
    async def look(city: Any) -> str:
        """Look."""
        called.append(city)
        return "warm"

    policies = {"look": ToolPolicy(approval=True)}
    agent = durable(build_agent(script([("look", city)]), [look]).compile(name="trip"), tools=policies)
    async with App([agent], "memory:") as app:
        [text] = get_tool_texts((await app.run("trip", "go")).output)
    assert text.startswith("The arguments cannot be read: ")
    assert text.endswith("The tool was not called.")
    assert called == []


async def test_half_a_surrogate_pair_in_a_reply_does_not_fail_the_run() -> None:
    async def model(state: State) -> State:
        return {"messages": [AIMessage("half \ud83d", usage_metadata=USAGE)]}

    async with App([durable(build_agent(model).compile(name="trip"))], "memory:") as app:
        await app.run("trip", "go", run_id="r")
        run = await app.get("r")
    assert run.output["text"] == "half \ufffd"
    assert run.usage.requests == 1


async def test_a_call_of_a_tool_node_is_retried_as_its_policy_says() -> None:
    crash = Crash()

    @tool
    async def fetch(city: str) -> str:
        """Fetch."""
        await crash.reach("fetch")
        if len(crash.passed) < 3:
            raise ConnectionResetError("cut")
        return "fetched"

    builder = StateGraph(State)
    builder.add_sequence([("model", script([("fetch", "Lyon")])), ("tools", ToolNode([fetch]))])
    builder.add_edge(START, "model")
    policy = ToolPolicy("pure", retry=Retry(initial_delay=timedelta(milliseconds=1)))
    result = await crash.run(durable(builder.compile(name="agent"), tools={"fetch": policy}))
    assert get_tool_texts(result.output) == ["fetched"]
    assert crash.passed == ["fetch"] * 3
    assert result.steps == 2


async def test_a_result_that_cannot_be_stored_ends_the_run_and_names_its_tool() -> None:
    @tool(response_format="content_and_artifact")
    async def fetch(city: str) -> Any:
        """Fetch."""
        return "fetched", asyncio.Lock()

    builder = StateGraph(State)
    builder.add_sequence([("model", script([("fetch", "Lyon")])), ("tools", ToolNode([fetch]))])
    builder.add_edge(START, "model")
    async with App([durable(builder.compile(name="agent"))], "memory:") as app:
        with fails_with(PayloadError, match="the result of fetch cannot be stored"):
            await app.run("agent", "go")


class Basket(TypedDict):
    order: "Order"
    secret: str


@dataclass
class Order:
    city: str


class Shown(TypedDict):
    order: Order


async def test_the_output_has_the_channels_of_the_output_schema() -> None:
    async def buy(state: Basket) -> Any:
        return {"order": Order("Lyon"), "secret": "4711"}

    builder = StateGraph(Basket, output_schema=Shown)
    builder.add_sequence([("buy", buy)])
    builder.add_edge(START, "buy")
    graph: Graph = builder.compile(name="shop")
    result = await Crash().run(durable(graph))
    assert result.output == {"order": Order("Lyon")}
    assert result.output == await graph.ainvoke({"secret": ""})


async def test_classes_of_the_schemas_are_the_same_after_a_resume() -> None:
    crash, seen = Crash("pay"), list[Any]()

    async def buy(state: Basket) -> Any:
        return {"order": Order("Lyon")}

    async def pay(state: Basket) -> Any:
        await crash.reach("pay")
        seen.append(state["order"])
        return {"secret": "paid"}

    builder = StateGraph(Basket)
    builder.add_sequence([("buy", buy), ("pay", pay)])
    builder.add_edge(START, "buy")
    result = await crash.run(durable(builder.compile(name="shop")))
    assert seen == [Order("Lyon")]
    assert result.output == {"order": Order("Lyon"), "secret": "paid"}


async def test_the_timeout_of_a_node_is_no_outage_of_a_provider() -> None:
    begun: list[str] = []

    async def wait(state: Visits) -> Any:
        begun.append("wait")
        await asyncio.Event().wait()

    builder = StateGraph(Visits)
    builder.add_node("wait", wait, timeout=0.01)
    builder.add_edge(START, "wait")
    with fails_with(NodeTimeoutError):
        await Crash().run(durable(builder.compile(name="visits"), retry=Retry(initial_delay=timedelta(0))))
    assert begun == ["wait"]


def test_a_graph_refuses_what_only_other_agents_have() -> None:
    async def compact(messages: Any) -> Any: ...

    with pytest.raises(DefinitionError, match="shorten them in a node"):
        durable(build_line(lambda state: {"places": []}).compile(name="visits"), compact=compact)


async def test_a_worker_that_lost_the_run_cannot_put_a_checkpoint_and_starts_no_further_node() -> None:
    host, visited = SimulatedHost(), list[str]()

    async def first(state: Visits) -> Visits:
        await host.inner.claim(RUN, "another", steal=True)
        return {"places": ["first"]}

    async def second(state: Visits) -> Visits:
        visited.append("second")
        return {"places": ["second"]}

    agent = durable(build_line(first, second).compile(name="visits"), input=lambda info: {"places": []})
    with pytest.raises(RunLost):
        await host.executor.run(agent, "go", run_id=RUN)
    assert visited == []


async def test_a_shutdown_stops_the_graph_between_two_supersteps() -> None:
    host, visited = SimulatedHost(), list[str]()

    async def first(state: Visits) -> Visits:
        visited.append("first")
        execution = host.executor.get_attempt(RUN)
        assert execution is not None
        execution.stop_state.drain()
        return {"places": ["first"]}

    async def second(state: Visits) -> Visits:
        visited.append("second")
        return {"places": ["second"]}

    agent = durable(build_line(first, second).compile(name="visits"), input=lambda info: {"places": []})
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id=RUN)
    assert visited == ["first"]
    result = await SimulatedHost(host.inner).resume(agent, RUN)
    assert (visited, result.output) == (["first", "second"], {"places": ["first", "second"]})


async def test_a_transient_error_of_a_node_is_retried_from_the_last_checkpoint() -> None:
    visited: list[str] = []

    async def first(state: Visits) -> Visits:
        visited.append("first")
        return {"places": ["first"]}

    async def second(state: Visits) -> Visits:
        visited.append("second")
        if len(visited) == 2:
            raise ModelUnavailable("try later")
        return {"places": ["second"]}

    retry = Retry(initial_delay=timedelta(milliseconds=1))
    agent = durable(build_line(first, second).compile(name="visits"), retry=retry)
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "", inputs={"places": []})
    assert (visited, result.output) == (["first", "second", "second"], {"places": ["first", "second"]})


# -- tools ----------------------------------------------------------------------------------------------------------


async def test_a_subgraph_whose_model_uses_a_call_id_again_makes_both_calls() -> None:
    made: list[str] = []

    @tool
    async def look(city: str) -> str:
        """Look."""
        made.append(city)
        return city

    async def model(state: State) -> State:
        done = sum(isinstance(message, AIMessage) for message in state["messages"])
        calls = [{"name": "look", "args": {"city": str(done)}, "id": "call"}] if done < 2 else []
        return {"messages": [AIMessage("", tool_calls=calls)]}

    agent = durable(build_line(build_agent(model, [look]).compile(), state=State).compile(name="outer"))
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "go")
    assert made == get_tool_texts(result.output) == ["0", "1"]


async def test_a_wrapper_of_a_tool_node_is_called_within_the_record() -> None:
    wrapped: list[str] = []

    async def wrap(request: Any, execute: Any) -> Any:
        wrapped.append(request.tool_call["name"])
        return await execute(request)

    @tool
    async def look(city: str) -> str:
        """Look."""
        return city

    line: Sequence[Any] = (script([("look", "Lyon")]), ToolNode([look], awrap_tool_call=wrap))
    graph = build_line(*line, state=State).compile(name="agent")
    agent = durable(graph)
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "go")
        assert (wrapped, result.usage.tool_calls) == (["look"], 1)
    # The graph itself was not changed, and the wrapper of holdfast works without a run.
    await _without_run(graph, "go")
    by_hand = ToolNode([look], awrap_tool_call=record_tool_call)
    await _without_run(build_line(script([("look", "Lyon")]), by_hand, state=State).compile(), "go")
    assert wrapped == ["look", "look"]


# -- definitions ----------------------------------------------------------------------------------------------------


def test_what_cannot_be_durable_is_refused() -> None:
    builder = build_line(lambda state: {"places": []})
    with pytest.raises(DefinitionError, match="compile"):
        durable(builder)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="interrupt"):
        durable(builder.compile(name="visits", interrupt_before=["node-0"]))
    with pytest.raises(DefinitionError, match="give a ToolPolicy"):
        durable(builder.compile(name="visits"), tools={"look": "never"})  # type: ignore[dict-item]
    with pytest.raises(DefinitionError, match="awrap_tool_call"):
        durable(
            build_line(ToolNode([], wrap_tool_call=lambda request, execute: execute(request))).compile(name="visits")
        )


async def test_a_long_run_stores_what_is_new_in_each_step() -> None:
    text = "x" * 1000

    async def step(state: State) -> State:
        return {"messages": [AIMessage(text, usage_metadata=USAGE)]}

    host = SimulatedHost()
    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: END if len(state["messages"]) > 60 else "step")
    agent = durable(builder.compile(name="long"))
    await host.executor.run(agent, "go", run_id=RUN)
    sizes = [sum(len(entry.body) for entry in write) for write in host.store.writes]
    # A message is in the write of its task and in the channel. The whole channel has 60,000 characters at the end.
    assert max(sizes) < 6_000
