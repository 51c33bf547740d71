"""Calls of a `ToolNode`: in doubt, unknown, removed by a deploy, announced together."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import MessagesState
from langgraph.prebuilt import ToolNode
from tests.adapters.langgraph.crash import RUN, Crash
from tests.adapters.langgraph.graphs import State, build_agent, script
from tests.adapters.langgraph.test_durable import build_line, get_tool_texts

from holdfast import App, Approve, RunWaiting, current_call
from holdfast.adapters.langgraph import ToolPolicy, durable, record_tool_call
from holdfast.adapters.langgraph.entries import ReplyEntry
from holdfast.adapters.langgraph.node_calls import collect_schemas, encode_result
from holdfast.adapters.langgraph.saver.holdfast_saver import make_serde
from holdfast.core.agents.calls import NOT_EXECUTED, Completed
from holdfast.core.errors import MissingDefinition, PayloadError, RunParked
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.stores.memory import MemoryStore


def make_pay(crash: Crash) -> Any:
    @tool
    async def pay(city: str) -> str:
        """Pay."""
        await crash.reach("pay")
        return f"paid in {city}"

    return pay


PAYING = script([("pay", "Lyon")])


@pytest.mark.parametrize(
    ("verdict", "text"),
    [(Completed("a receipt"), "a receipt"), (Completed({"cents": 7}), "{'cents': 7}"), (NOT_EXECUTED, "paid in Lyon")],
)
async def test_a_call_in_doubt_is_reconciled(verdict: Any, text: str) -> None:
    crash, asked = Crash("pay"), list[Any]()

    async def reconcile(context: Any) -> Any:
        asked.append((context.call_id, context.tool, context.arguments))
        return verdict

    agent = durable(
        build_agent(PAYING, [make_pay(crash)]).compile(name="agent"), tools={"pay": ToolPolicy(reconcile=reconcile)}
    )
    result = await crash.run(agent)
    assert get_tool_texts(result.output) == [text]
    [message] = [each for each in result.output["messages"] if isinstance(each, ToolMessage)]
    assert (message.status, message.tool_call_id, message.name) == ("success", "c0-0", "pay")
    assert asked == [("c0-0", "pay", {"city": "Lyon"})]
    assert len(crash.passed) == (2 if verdict is NOT_EXECUTED else 1)


@pytest.mark.parametrize("way", ["metadata", "function", "both"])
async def test_a_harmless_call_in_doubt_is_made_again(way: str) -> None:
    crash = Crash("pay")
    metadata = None if way == "function" else {"effect": "pure" if way == "metadata" else "once"}
    pay = make_pay(crash)
    pay.metadata = metadata
    tools: Any = {} if way == "metadata" else lambda given: ToolPolicy("idempotent") if given is pay else None
    await crash.run(durable(build_agent(PAYING, [pay]).compile(name="agent"), tools=tools))
    assert crash.passed == ["pay", "pay"]


@pytest.mark.parametrize(("policy", "error"), [("defer", MissingDefinition), ("park", RunParked), ("report", None)])
async def test_a_tool_that_a_deploy_removed_meets_the_policy(policy: Any, error: Any) -> None:
    crash = Crash("pay")

    @tool
    async def look(city: str) -> str:
        """Look."""
        return "seen"

    model = script([("pay", "Lyon"), ("look", "Lyon"), ("invented", "Lyon")])
    before = durable(
        build_agent(model, [make_pay(crash), look]).compile(name="agent"), tools={"pay": ToolPolicy("pure")}
    )
    after = durable(build_agent(model, [look]).compile(name="agent"), missing_tools=policy)

    if error is None:
        texts = get_tool_texts((await crash.run(before, then=after)).output)
        assert texts[:2] == [UNKNOWN_OUTCOME, "seen"], "a tool without a policy counts as once"
        assert "invented is not a valid tool" in texts[2]
    else:
        with pytest.raises(error, match="pay") as stopped:
            await crash.run(before, then=after)
        assert "invented" not in str(stopped.value), "the graph never had it"


async def test_a_tool_that_the_model_invents_is_reported_to_it() -> None:
    graph = build_agent(script([("invented", "Lyon"), ("pay", "Faro")]), [make_pay(Crash())])
    agent = durable(graph.compile(name="agent"))
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "go")
    invented, paid = get_tool_texts(result.output)
    assert "invented is not a valid tool" in invented
    assert (paid, result.usage.tool_calls) == ("paid in Faro", 2)
    [announced] = [each for each in result.messages if isinstance(each, ReplyEntry) and each.tool_calls]
    assert [call.id for call in announced.tool_calls] == ["c0-0", "c0-1"], "calls of one reply are announced together"
    assert announced.unknown == ("c0-0",)


async def test_edited_arguments_fit_the_schema_of_the_tool() -> None:
    made: list[int] = []

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        made.append(cents)
        return f"paid {cents} with {current_call().arguments}"

    async def model(state: State) -> State:
        return {"messages": [AIMessage("", tool_calls=[{"name": "pay", "args": {"cents": 7}, "id": "c1"}])]}

    agent = durable(
        build_line(model, ToolNode([pay]), state=State).compile(name="agent"), tools={"pay": ToolPolicy(approval=True)}
    )
    async with App([agent], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "go", run_id=RUN)
        with pytest.raises(Exception, match="cents: is not of type integer"):
            await app.answer(RUN, "c1", Approve(arguments={"cents": "many"}))
        await app.answer(RUN, "c1", Approve(arguments={"cents": 5}))
        assert get_tool_texts((await app.resume(RUN)).output) == ["paid 5 with {'cents': 5}"]
    assert made == [5]


async def test_without_a_run_a_recorded_tool_is_called_as_always() -> None:
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    graph = build_line(ToolNode([look], awrap_tool_call=record_tool_call), state=MessagesState).compile()
    asked = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c1"}])
    result = await graph.ainvoke({"messages": [HumanMessage("go"), asked]})
    assert str(result["messages"][-1].text) == "seen"


def test_the_schemas_of_subgraphs_are_known_too() -> None:
    inner = build_agent(PAYING, [make_pay(Crash())]).compile()

    @tool
    def look(place: str) -> str:
        """Look."""
        return place

    builder = build_line(inner, state=State)
    builder.add_node("tools", ToolNode([look]))
    schemas = collect_schemas(builder.compile())
    assert {name: list(schema["properties"]) for name, schema in schemas.items()} == {
        "pay": ["city"],
        "look": ["place"],
    }


def test_a_result_is_an_entry_with_its_text() -> None:
    serde = make_serde(())
    failed = encode_result(serde, "c1", "pay", ToolMessage("no", tool_call_id="c1", status="error"))
    assert (failed.call_id, failed.tool, failed.content, failed.error) == ("c1", "pay", "no", True)
    other = encode_result(serde, "c1", "pay", ["no message"])
    assert (other.content, other.error, serde.loads_typed((other.type, other.body))) == (None, False, ["no message"])
    good = encode_result(serde, "c1", "pay", ToolMessage("yes", tool_call_id="c1"))
    assert (good.content, good.error) == ("yes", False)
    with pytest.raises(PayloadError, match="the result of pay cannot be stored"):
        encode_result(serde, "c1", "pay", lambda: None)
