"""Makes the `ToolNode`s of a graph record their calls."""

import copy
from typing import Any

from langgraph.prebuilt.tool_node import ToolCallRequest, ToolNode
from langgraph.pregel import Pregel

from holdfast.adapters.langgraph.graph import Graph
from holdfast.adapters.langgraph.tools import CURRENT_CALLS, Execute
from holdfast.core.errors import DefinitionError


async def record_tool_call(request: ToolCallRequest, execute: Execute) -> Any:
    """Record a tool call with the run that makes it: `ToolNode(tools, awrap_tool_call=record_tool_call)`.

    `durable` adds this to each `ToolNode` of a graph and of its subgraphs. A graph that is invoked within a node has to
    be given it by hand. Without a run, the tool is called as always.
    """
    calls = CURRENT_CALLS.get()
    return await (execute(request) if calls is None else calls.call(request, execute))


def record_tool_nodes(graph: Graph) -> Graph:
    """Return a copy of the graph whose `ToolNode`s record their calls; its subgraphs too.

    Raises:
        DefinitionError: a `ToolNode` has only a sync wrapper.
    """
    nodes = {name: node.copy({"bound": _replace_bound(node.bound)}) for name, node in graph.nodes.items()}
    return graph.copy({"nodes": nodes})


def _replace_bound(bound: Any) -> Any:
    if isinstance(bound, Pregel):
        return record_tool_nodes(bound)
    if not isinstance(bound, ToolNode) or bound._awrap_tool_call is record_tool_call:
        return bound
    wrapped = bound._awrap_tool_call
    if wrapped is None and bound._wrap_tool_call is not None:
        raise DefinitionError(f"the ToolNode {bound.name} has wrap_tool_call: give it awrap_tool_call too")
    node = copy.copy(bound)
    # A node keeps its own bound methods.
    node.func, node.afunc = node._func, node._afunc
    node._awrap_tool_call = record_tool_call if wrapped is None else _record_around(wrapped)
    return node


def _record_around(wrapped: Any) -> Any:
    async def call(request: ToolCallRequest, execute: Execute) -> Any:
        async def run_wrapped(given: ToolCallRequest) -> Any:
            return await wrapped(given, execute)

        return await record_tool_call(request, run_wrapped)

    return call
