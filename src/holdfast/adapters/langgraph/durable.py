"""The loop that executes compiled graphs, and `durable`, which makes an agent of one."""

import base64
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Unpack

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph._internal._serde import collect_allowlist_from_schemas
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphRecursionError, NodeTimeoutError
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StreamMode

from holdfast.adapters.langgraph.deploys import Graph, list_removed_nodes
from holdfast.adapters.langgraph.entries import CODEC, CheckpointRows, GraphCallLog
from holdfast.adapters.langgraph.graph_stream import Stream, emit_chunk, parse_streams
from holdfast.adapters.langgraph.interrupts import Interrupts
from holdfast.adapters.langgraph.model_callbacks import limit_model_calls
from holdfast.adapters.langgraph.node_calls import (
    NodeCalls,
    RunStopped,
    collect_schemas,
    encode_result,
    record_tool_nodes,
)
from holdfast.adapters.langgraph.run_saver import RunSaver, begin_step
from holdfast.adapters.langgraph.saver.holdfast_saver import make_serde
from holdfast.adapters.tool_policies import NO_POLICIES, ToolPolicies, check_policies
from holdfast.core.agents.agent import Agent, AgentOptions
from holdfast.core.errors import DefinitionError, PayloadError, StepsExceeded
from holdfast.core.execution.native_loop import make_prompt_message
from holdfast.core.execution.step import StepContext
from holdfast.core.loop import FinishedCall, PendingCall
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import MessageCodec, User, replace_half_pairs

#: Makes the input of a graph from a run.
MakeInput = Callable[[RunInfo], Any]

_MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """The options of `durable` that a run needs."""

    make_input: MakeInput | None = None
    context: Callable[[RunInfo], Any] | None = None
    tools: ToolPolicies
    streams: tuple[StreamMode, ...] = ()


class LangGraphLoop:
    """The loop of one graph. Made by `durable`."""

    name = "langgraph"

    def __init__(self, graph: Graph, serde: SerializerProtocol, options: GraphOptions) -> None:
        self._graph, self._serde, self._options = graph, serde, options
        self._schemas = collect_schemas(graph)

    @property
    def codec(self) -> MessageCodec:
        return CODEC

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        return [
            PendingCall(call_id=call.id, tool=call.name, arguments=call.arguments)
            for call in GraphCallLog(history).pending.values()
        ]

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        return [
            FinishedCall(
                call_id=call.id, tool=call.name, arguments=call.arguments, content=result.content, error=result.error
            )
            for call, result in GraphCallLog([*history, *(results or {}).values()]).finished
        ]

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        call_id = call.call_id.partition("@")[0]
        text = content if isinstance(content, str) else CODEC.encode(content).decode()
        message = ToolMessage(text, name=call.tool, tool_call_id=call_id, status="error" if error else "success")
        return encode_result(self._serde, call.call_id, call.tool, message)

    def make_message(self, content: str | list[Any]) -> Any:
        return make_prompt_message(content)

    def dump_output(self, output: Any) -> Any:
        """Return the values as the serializer stores them, and the text of the last message for other readers."""
        try:
            type_, body = self._serde.dumps_typed(output)
        except (TypeError, ValueError) as exc:
            raise PayloadError(f"the output of the graph cannot be stored: {exc}") from exc
        return {"text": replace_half_pairs(_get_text(output)), "type": type_, "body": base64.b64encode(body).decode()}

    def load_output(self, stored: Any) -> Any:
        return self._serde.loads_typed((stored["type"], base64.b64decode(stored["body"])))

    async def run(self, context: StepContext) -> Any:
        """Return the output of the graph.

        Raises:
            RunWaiting: the graph has called `interrupt`.
            StepsExceeded: it took as many supersteps as the run may take.
        """
        while True:
            try:
                return await self._run_once(context)
            except RunStopped as stopped:
                raise stopped.error from None
            except NodeTimeoutError:
                raise  # the node has had its own retries
            except GraphRecursionError:
                raise StepsExceeded(context.run_id, context.profile.bounds.max_steps) from None
            except Exception as exc:  # of a node, which may raise anything: a transient one is a model's
                await context.model_calls.on_error(exc)

    async def _run_once(self, context: StepContext) -> Any:
        if context.begins:
            prompt = context.prompt if isinstance(context.prompt, str) else ""
            await context.start([User(prompt)])
        saver = RunSaver(context, self._serde, self._graph)
        async with saver:
            await saver.database.load()
            graph = self._graph.copy({"checkpointer": saver})
            await self._refuse_removed_nodes(graph, saver, context)
            interrupts = Interrupts(context, self._schemas)
            NodeCalls(context, self._options.tools, self._serde, interrupts).use()
            while True:
                given = await self._find_input(graph, context, interrupts)
                output = await self._stream(graph, context, given)
                if not await self._find_interrupts(graph, context) and not _list_sent(context):
                    return output

    async def _find_input(self, graph: Graph, context: StepContext, interrupts: Interrupts) -> Any:
        """Return what the graph is invoked with: an input, the answers to interrupts, or nothing to continue.

        Raises:
            RunWaiting: an interrupt has no answer.
        """
        waits_for_input = not _has_input(context)
        if not waits_for_input and (waiting := await self._find_interrupts(graph, context)):
            return Command(resume=await interrupts.resolve(waiting))
        await begin_step(context)
        state, sent = await graph.aget_state(_make_config(context)), _list_sent(context)
        if not sent or (state.next and not waits_for_input):
            return None
        if state.created_at is None:
            return self._make_first_input(context.attempt.info, sent)
        return {_MESSAGES: [HumanMessage(text) for text in sent]}

    async def _refuse_removed_nodes(self, graph: Graph, saver: RunSaver, context: StepContext) -> None:
        """Refuse to continue if a deploy has removed nodes that are due: the graph would end as if they had run."""
        state = await graph.aget_state(_make_config(context), subgraphs=True)
        if removed := await list_removed_nodes(graph, saver, state):
            context.refuse_removed("node", removed)

    async def _find_interrupts(self, graph: Graph, context: StepContext) -> Sequence[Interrupt]:
        return (await graph.aget_state(_make_config(context))).interrupts

    def _make_first_input(self, info: RunInfo, sent: Sequence[str]) -> Any:
        if self._options.make_input is not None:
            return self._options.make_input(info)
        messages = [HumanMessage(text) for text in sent if text]
        if messages and _MESSAGES in self._graph.channels:
            return {**info.inputs, _MESSAGES: messages}
        return dict(info.inputs)

    async def _stream(self, graph: Graph, context: StepContext, given: Any) -> Any:
        """Run the graph until it ends or waits. Return its values."""
        make_context = self._options.context
        # It is an async generator, although its type does not say so.
        events: Any = graph.astream(
            given,
            limit_model_calls(_make_config(context), context),
            context=None if make_context is None else make_context(context.attempt.info),
            stream_mode=["values", *self._options.streams],
            subgraphs=True,
            durability="sync",
        )
        output: Any = None
        async with aclosing(events):
            async for ns, mode, chunk in events:
                if mode != "values":
                    await emit_chunk(context, ns, mode, chunk)
                elif not ns:
                    output = chunk
        return _select_output(graph, output)


def durable(
    graph: Graph,
    *,
    name: str | None = None,
    tools: ToolPolicies = NO_POLICIES,
    stream: bool | Collection[Stream] = False,
    input: MakeInput | None = None,
    context: Callable[[RunInfo], Any] | None = None,
    types: Sequence[type] = (),
    serde: SerializerProtocol | None = None,
    **options: Unpack[AgentOptions],
) -> Agent[Any]:
    """Make a compiled graph durable. The graph itself is not changed, and its own checkpointer is not used.

    The checkpoints of the graph are part of the run: they are written under its claim, and deleted with it. A superstep
    is a step of the run. `interrupt` lets the run wait until `App.answer` answers it by the id of the interrupt. The
    output of the run is what `ainvoke` returns.

    Args:
        name: interrupted runs find their graph by it; without it the graph's own name.
        tools: a `ToolPolicy` by the name of a tool that a `ToolNode` calls, or a function of the tool that returns one.
            Without it the tool's metadata decides, as `{"effect": "pure"}`; the default is `once`. The function of an
            approval gets the arguments as the model gave them.
        stream: show the text of replies as it arrives (`messages`) and what nodes write to the stream (`custom`), to
            watchers and the listener. A list chooses among these and `updates`, what each node returned.
        input: makes the graph's input from a run. Without it, the input is the run's inputs, and the prompt as a
            message if the graph has a `messages` channel.
        context: makes the graph's runtime context, when a run begins and again at each resume.
        types: your own classes in the state that its schemas do not name: an object of another class is loaded as
            plain data.
        serde: another serializer, in place of msgpack with these types.
        options: `bounds`; `retry` of a superstep in which a node raised a transient error; `missing_tools`, also for a
            node that the graph no longer has (`report` parks the run then); `agent_id` and `model_tier`, as in `Agent`.

    Raises:
        DefinitionError: this is no compiled graph, it has no name, or an option has a wrong value.
    """
    if not isinstance(graph, Pregel):
        raise DefinitionError(f"{type(graph).__name__} is not a compiled graph: call compile() on it first")
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes:
        raise DefinitionError("the graph stops before or after nodes: call interrupt() in a node instead")
    if "compact" in options:
        raise DefinitionError("a graph has its own messages: shorten them in a node, instead of with compact")
    name = name or graph.name
    if not name:
        raise DefinitionError("the graph has no name: give it one with name=, interrupted runs find their agent by it")
    own = GraphOptions(make_input=input, context=context, tools=check_policies(tools), streams=parse_streams(stream))
    return Agent(
        name=name,
        loop=LangGraphLoop(record_tool_nodes(graph), serde or make_serde([*types, *_collect_types(graph)]), own),
        **options,
    )


def _select_output(graph: Graph, values: Any) -> Any:
    """Return the output channels of all values, as `ainvoke` does."""
    names = graph.output_channels
    if values is None or isinstance(graph.stream_channels_asis, str):
        return values
    if isinstance(names, str):
        return values.get(names)
    return {name: values[name] for name in names if name in values}


def _collect_types(graph: Graph) -> set[tuple[str, ...]]:
    """Return the classes that the schemas of the graph and of its subgraphs name, each as module and name."""
    schemas: list[Any] = []
    if isinstance(graph, CompiledStateGraph):
        builder = graph.builder
        schemas += [builder.state_schema, builder.input_schema, builder.output_schema]
        schemas += [node.input_schema for node in builder.nodes.values()]
    found = collect_allowlist_from_schemas(schemas=schemas, channels=graph.channels)
    for _, subgraph in graph.get_subgraphs():
        if isinstance(subgraph, Pregel):
            found |= _collect_types(subgraph)
    return found


def _make_config(context: StepContext) -> RunnableConfig:
    # The bound of the run is checked at each step. LangGraph's own limit is for the steps of subgraphs.
    limit = context.profile.bounds.max_steps + 1
    return {"configurable": {"thread_id": context.run_id, "checkpoint_ns": ""}, "recursion_limit": limit}


def _has_input(context: StepContext) -> bool:
    """Return whether the graph has received the prompt of the run, or of the current turn of a conversation."""
    history = context.state.history
    return any(isinstance(entry, CheckpointRows) and entry.starts_turn for entry in history[history.turn_start :])


def _list_sent(context: StepContext) -> list[str]:
    """Return the prompt or the messages that the graph has not received yet."""
    history = context.state.history
    sent: list[str] = []
    for entry in history[history.turn_start :]:
        if isinstance(entry, User):
            sent.append(entry.text)
        elif isinstance(entry, CheckpointRows) and entry.starts_turn:
            sent = []
    return sent


def _get_text(output: Any) -> str:
    messages = output.get(_MESSAGES) if isinstance(output, dict) else None
    last = messages[-1] if isinstance(messages, list) and messages else None
    return str(last.text) if isinstance(last, BaseMessage) else ""
