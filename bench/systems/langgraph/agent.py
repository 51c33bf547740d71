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
from langgraph.types import Send


class Messages(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class DeltaMessages(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


async def nothing() -> None:
    """Do nothing."""


class Agent:
    """Take the given number of steps and answer; each step asks for the given number of tool calls.

    Args:
        steps: None to stop after the first whole step in this process.
        in_tool: awaited by every tool.
        at_end: awaited before the answer.
    """

    def __init__(
        self,
        steps: int | None,
        size: int,
        calls: int = 1,
        in_tool: Callable[[], Awaitable[None]] = nothing,
        at_end: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        self._steps, self._size, self._calls = steps, size, calls
        self._in_tool, self._at_end = in_tool, at_end
        #: When the model was called, by run.
        self.times: dict[str, list[float]] = defaultdict(list)

    def model(self, state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        times = self.times[config["configurable"]["thread_id"]]
        times.append(time.perf_counter())
        messages_per_step = 1 + self._calls
        first = (len(state["messages"]) - 1) // messages_per_step * messages_per_step
        if len(times) == 2 if self._steps is None else first >= self._steps * messages_per_step:
            return {"messages": [AIMessage("done")]}
        calls = [{"name": "look", "args": {"number": first + 1 + call}, "id": str(call)} for call in range(self._calls)]
        return {"messages": [AIMessage(text(first, self._size), tool_calls=calls)]}

    def tool(self, given: dict[str, Any]) -> dict[str, Any]:
        """Given the state, of which it takes the only call; or a call of several."""
        call = given["messages"][-1].tool_calls[0] if "messages" in given else given
        return {"messages": [ToolMessage(text(call["args"]["number"], self._size), tool_call_id=call["id"])]}

    async def async_model(self, state: dict[str, Any], config: RunnableConfig) -> dict[str, Any]:
        reply = self.model(state, config)
        if not reply["messages"][0].tool_calls:
            await self._at_end()
        return reply

    async def async_tool(self, given: dict[str, Any]) -> dict[str, Any]:
        await self._in_tool()
        return self.tool(given)

    def after_model(self, state: dict[str, Any]) -> Any:
        calls = state["messages"][-1].tool_calls
        if not calls:
            return END
        return "tool" if self._calls == 1 else [Send("tool", call) for call in calls]

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
