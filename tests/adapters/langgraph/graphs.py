"""Durable graphs without random ids, for runs that are compared with each other."""

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command

from holdfast import current_call
from holdfast.adapters.langgraph import ToolPolicy, durable

USAGE = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


class State(TypedDict):
    # `add_messages` would give each message a random id.
    messages: Annotated[list[AnyMessage], operator.add]


@tool
async def look(city: str) -> str:
    """Look at the weather."""
    return f"{city} is warm"


@tool
async def reserve(city: str) -> str:
    """Reserve a room."""
    return f"{city} with key {current_call().idempotency_key.partition(':')[2]}"


@tool
async def pay(city: str) -> str:
    """Pay for a room."""
    return f"paid in {city}"


@tool
async def sign(city: str) -> Command[Any]:
    """Sign a contract, and say so in the state."""
    return Command(update={"messages": [ToolMessage(f"signed in {city}", tool_call_id=current_call().call_id)]})


POLICIES = {"look": ToolPolicy("pure"), "reserve": ToolPolicy("idempotent")}


def script(*batches: Sequence[tuple[str, str]]) -> Any:
    """Return a model node that asks for one batch of tools after the other, each a tool and a city."""

    async def model(state: State) -> State:
        done = sum(isinstance(message, AIMessage) for message in state["messages"])
        if done == len(batches):
            return {"messages": [AIMessage("done", usage_metadata=USAGE)]}
        calls = [
            {"name": name, "args": {"city": city}, "id": f"c{done}-{number}"}
            for number, (name, city) in enumerate(batches[done])
        ]
        return {"messages": [AIMessage("", tool_calls=calls, usage_metadata=USAGE)]}

    return model


def build_agent(model: Any, tools: Sequence[Any] = (look, reserve, pay, sign)) -> StateGraph[Any]:
    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_node("tools", ToolNode(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder


def _build_nested() -> StateGraph[Any]:
    """A graph whose first node is an agent of its own, with several steps within one of the run."""
    inner = build_agent(script([("pay", "Lyon"), ("look", "Lyon")], [("pay", "Bari")]))
    builder = StateGraph(State)
    builder.add_node("agent", inner.compile())
    builder.add_node("end", lambda state: {"messages": [AIMessage(f"{len(state['messages'])} messages")]})
    builder.add_edge(START, "agent")
    builder.add_edge("agent", "end")
    return builder


trip = durable(
    build_agent(
        script([("look", "Lyon"), ("pay", "Lyon"), ("reserve", "Lyon")], [("pay", "Faro"), ("sign", "Faro")])
    ).compile(name="trip"),
    tools=POLICIES,
)
nested = durable(_build_nested().compile(name="nested"), tools=POLICIES)
