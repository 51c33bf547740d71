"""The calls of `ToolNode`s: each is recorded under its call id, and made as its effect allows."""

import asyncio
import copy
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolNode
from langgraph.pregel import Pregel

from holdfast.adapters.langgraph.entries import CallInterrupted, CallLog, CallResult, ReplyEntry
from holdfast.core.effects import Effect, InDoubt, Reconcile
from holdfast.core.errors import DefinitionError, PayloadError, RunError
from holdfast.core.execution.calls import CallRequest
from holdfast.core.execution.steps import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.message import ToolCall

#: What a `ToolNode` gets for a call: a `ToolMessage`, a `Command`, or a list of them.
Execute = Callable[[ToolCallRequest], Awaitable[Any]]

_CURRENT_CALLS: ContextVar["ToolCalls | None"] = ContextVar("holdfast_langgraph_calls", default=None)


class RunStopped(GraphBubbleUp):
    """Carries an error that ends the run past a `ToolNode`, which may turn errors into messages for the model."""

    def __init__(self, error: RunError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPolicies:
    """The policies for the tools of a graph, by tool name. The default effect is `once`."""

    effects: Mapping[str, Effect | str] = field(default_factory=dict)
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict)
    in_doubt: Mapping[str, InDoubt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, effect in self.effects.items():
            if _parse_effect(name, effect) is not Effect.ONCE and name in self.reconcile:
                raise DefinitionError(f"tool {name} is {effect}: only a once tool has anything to reconcile")

    def get_effect(self, request: ToolCallRequest) -> Effect:
        """Return the effect of a tool: by its name here, or as its metadata says."""
        name, metadata = request.tool_call["name"], (request.tool.metadata if request.tool else None) or {}
        return _parse_effect(name, self.effects.get(name, metadata.get("effect", Effect.ONCE)))


class ToolCalls:
    """The tool calls of one attempt of a run."""

    def __init__(self, context: StepContext, policies: ToolPolicies, serde: SerializerProtocol) -> None:
        self._context, self._policies, self._serde = context, policies, serde
        log = CallLog(context.state.history)
        #: Announced by an earlier process that did not record their results.
        self._unresolved = set(log.pending) - log.interrupted
        #: The tasks that make the calls of the current step, by call id.
        self._tasks = log.tasks
        #: The calls of the current step that this process has announced.
        self._announced: dict[str, CallRequest] = {}
        self._step = context.state.steps
        self._arrived: list[CallRequest] = []
        self._announcing: asyncio.Task[None] | None = None

    def use(self) -> None:
        """Record the calls that this task and its children make."""
        _CURRENT_CALLS.set(self)

    async def call(self, request: ToolCallRequest, execute: Execute) -> Any:
        """Return the recorded result of a call, or make it.

        Raises:
            RunStopped: the run has to end here.
        """
        try:
            call = self._make_call(request, execute)
            await self._announce(call)
            result = await self._context.call(call)
        except RunError as exc:
            raise RunStopped(exc) from exc
        return self._serde.loads_typed((result.type, result.body))

    def _make_call(self, request: ToolCallRequest, execute: Execute) -> CallRequest:
        name, call_id = request.tool_call["name"], self._make_call_id(request)

        def encode(value: Any) -> CallResult:
            return encode_result(self._serde, call_id, name, value)

        def explain(text: str) -> CallResult:
            return encode(ToolMessage(text, name=name, tool_call_id=request.tool_call["id"], status="error"))

        def reconcile(value: Any) -> CallResult:
            content = value if isinstance(value, str) else to_json_value(value, "the result of a call")
            return encode(ToolMessage(content, name=name, tool_call_id=request.tool_call["id"]))

        async def make() -> CallResult:
            try:
                return encode(await execute(request))
            except GraphBubbleUp:
                self._context.state.history.append(CallInterrupted(call_id))
                raise

        return CallRequest(
            call_id=call_id,
            tool=name,
            arguments=to_json_value(request.tool_call["args"], "the arguments of a call"),
            effect=self._policies.get_effect(request),
            execute=make,
            error_result=explain,
            reconciled_result=reconcile,
            reconcile=self._policies.reconcile.get(name),
            in_doubt=self._policies.in_doubt.get(name, "report"),
            is_error=_is_error,
        )

    def _make_call_id(self, request: ToolCallRequest) -> str:
        """Return the model's id of the call. If another task of the step has used it, a digest of the task is added.

        A subgraph takes all its steps within one of the run, and a model may use an id again.
        """
        if self._step != self._context.state.steps:
            self._step = self._context.state.steps
            self._tasks, self._announced, self._unresolved = {}, {}, set()
        call_id, task = str(request.tool_call["id"]), _get_task(request)
        if self._tasks.setdefault(call_id, task) == task:
            return call_id
        call_id = f"{call_id}@{hashlib.blake2b(task.encode(), digest_size=4).hexdigest()}"
        self._tasks[call_id] = task
        return call_id

    async def _announce(self, call: CallRequest) -> None:
        """Return when the call may be made. Calls that arrive together are announced together."""
        self._arrived.append(call)
        while call in self._arrived:
            if self._announcing is None:
                self._announcing = asyncio.create_task(self._announce_arrived())
            await asyncio.shield(self._announcing)

    async def _announce_arrived(self) -> None:
        try:
            await asyncio.sleep(0)  # the other calls of the batch arrive
            calls = [*self._arrived]
            await self._announce_calls(calls)
            self._arrived = [call for call in self._arrived if call not in calls]
        finally:
            self._announcing = None

    async def _announce_calls(self, calls: list[CallRequest]) -> None:
        context = self._context
        started = [*self._announced]
        new = [call for call in calls if call.call_id not in self._unresolved]
        if new:
            context.state.history.append(
                ReplyEntry(
                    tool_calls=tuple(
                        ToolCall(id=call.call_id, name=call.tool, arguments=call.arguments) for call in new
                    ),
                    tasks=tuple(self._tasks[call.call_id] for call in new),
                )
            )
        self._announced.update((call.call_id, call) for call in calls)
        resumed = len(new) < len(calls)
        if resumed and any(call.effect is Effect.ONCE for call in new):
            await context.run.save(must_succeed=True)
        known = {*started, *(call.call_id for call in new)} if resumed else {*started}
        await context.announce_calls([*self._announced.values()], resumed=resumed, not_started=known)


def encode_result(serde: SerializerProtocol, call_id: str, tool: str, value: Any) -> CallResult:
    """Return what a `ToolNode` gets for a call as an entry.

    Raises:
        PayloadError: it cannot be stored.
    """
    try:
        type_, body = serde.dumps_typed(value)
    except (TypeError, ValueError) as exc:
        raise PayloadError(f"the result of {tool} cannot be stored: {exc}") from exc
    error = isinstance(value, ToolMessage) and value.status == "error"
    text = str(value.text) if isinstance(value, ToolMessage) else None
    return CallResult(call_id=call_id, tool=tool, content=text, error=error, type=type_, body=body)


async def record_tool_call(request: ToolCallRequest, execute: Execute) -> Any:
    """Record a tool call with the run that makes it: `ToolNode(tools, awrap_tool_call=record_tool_call)`.

    `durable` adds this to each `ToolNode` of a graph and of its subgraphs. A graph that is invoked within a node has to
    be given it by hand. Without a run, the tool is called as always.
    """
    calls = _CURRENT_CALLS.get()
    return await (execute(request) if calls is None else calls.call(request, execute))


def record_tool_nodes(graph: Pregel[Any, Any, Any, Any]) -> Pregel[Any, Any, Any, Any]:
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


def _get_task(request: ToolCallRequest) -> str:
    return str(request.runtime.config.get("configurable", {}).get("checkpoint_ns", ""))


def _is_error(result: Any) -> bool:
    return isinstance(result, CallResult) and result.error


def _parse_effect(name: str, value: Any) -> Effect:
    try:
        return Effect(value)
    except ValueError:
        raise DefinitionError(f"tool {name}: effect is {value!r}, not one of {[*Effect]}") from None
