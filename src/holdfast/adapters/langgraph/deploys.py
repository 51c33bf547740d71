"""What a deploy removed from a graph."""

from collections.abc import Iterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint
from langgraph.pregel import Pregel
from langgraph.types import Send, StateSnapshot

Graph = Pregel[Any, Any, Any, Any]


#: The channel that starts a node has this before the name of the node.
_BRANCH = "branch:to:"
#: The channel of tasks that `Send` has made.
SENDS = "__pregel_tasks"


async def list_removed_nodes(graph: Graph, saver: BaseCheckpointSaver[str], state: StateSnapshot) -> list[str]:
    """Return the nodes that are due in a state and that the graph does not have, those of its subgraphs too.

    LangGraph itself ignores them: the graph would end as if they had run.

    Args:
        graph: as this process has it.
        saver: has the checkpoints.
        state: with the states of subgraphs.
    """
    found = await saver.aget_tuple(state.config)
    if found is None:
        return []
    removed = [name for name in _iter_due_nodes(found.checkpoint) if name not in graph.nodes]
    for task in state.tasks:
        if not isinstance(task.state, StateSnapshot):
            continue
        for _, subgraph in graph.get_subgraphs(namespace=task.name):
            if isinstance(subgraph, Pregel):
                inner = await list_removed_nodes(subgraph, saver, task.state)
                removed += [f"{task.name}.{name}" for name in inner]
    return removed


def _iter_due_nodes(checkpoint: Checkpoint) -> Iterator[str]:
    values = checkpoint["channel_values"]
    for channel in values:
        if channel.startswith(_BRANCH):
            yield channel.removeprefix(_BRANCH)
    for send in values.get(SENDS) or ():
        if isinstance(send, Send):
            yield send.node
