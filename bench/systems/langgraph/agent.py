"""The agent that is measured: a graph of a model node and a tool node."""

import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

from bench.systems.protocol import Job, text
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages


class Messages(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


async def nothing() -> None:
    """Do nothing."""


class Agent:
    """Take the given number of steps with one tool call each, and answer.

    Args:
        steps: None to stop after the first whole step in this process.
        at_end: awaited before the answer.
    """

    def __init__(
        self,
        steps: int | None,
        size: int,
        at_end: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        self._steps, self._size, self._at_end = steps, size, at_end
        #: When the model was called, by run.
        self.times: dict[str, list[float]] = defaultdict(list)

    def model(self, state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        times = self.times[config["configurable"]["thread_id"]]
        times.append(time.perf_counter())
        first = len(state["messages"]) - 1  # all but the prompt
        if len(times) == 2 if self._steps is None else first >= 2 * self._steps:
            return {"messages": [AIMessage("done")]}
        call = {"name": "look", "args": {"number": first + 1}, "id": str(first)}
        return {"messages": [AIMessage(text(first, self._size), tool_calls=[call])]}

    def tool(self, state: dict[str, Any]) -> dict[str, Any]:
        (call,) = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(text(call["args"]["number"], self._size), tool_call_id=call["id"])]}

    async def async_model(self, state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        reply = self.model(state, config)
        if not reply["messages"][0].tool_calls:
            await self._at_end()
        return reply

    async def async_tool(self, state: dict[str, Any]) -> dict[str, Any]:
        return self.tool(state)

    def after_model(self, state: dict[str, Any]) -> str:
        return "tool" if state["messages"][-1].tool_calls else END

    def graph(self, job: Job, saver: Any) -> Any:
        """With nodes of the saver's kind: asynchronous or not."""
        builder: Any = StateGraph(DeltaMessages if job["variant"].endswith("-delta") else Messages)
        plain = isinstance(saver, SqliteSaver | PostgresSaver)
        builder.add_node("model", self.model if plain else self.async_model)
        builder.add_node("tool", self.tool if plain else self.async_tool)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", self.after_model, ["tool", END])
        builder.add_edge("tool", "model")
        return builder.compile(checkpointer=saver)

    def step_seconds(self) -> list[float]:
        return [later - earlier for times in self.times.values() for earlier, later in itertools.pairwise(times)]
