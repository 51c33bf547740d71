"""The calls of a graph's ToolNodes: announced, made once and recorded one by one."""

import asyncio
import copy
import functools
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, cast

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import ToolCall as LangChainToolCall
from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langchain_core.tools import BaseTool, ToolException
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest, ToolNode
from langgraph.pregel import Pregel

from holdfast.adapters.call_arguments import UNREADABLE_REASON, is_unreadable
from holdfast.adapters.langgraph.deploys import Graph
from holdfast.adapters.langgraph.entries import CallInterrupted, GraphCallLog, GraphCallResult, ReplyEntry
from holdfast.adapters.langgraph.graph_stream import to_plain_data
from holdfast.adapters.langgraph.interrupts import Interrupts
from holdfast.adapters.tool_policies import PURE, ToolPolicies, find_policy
from holdfast.core.agents.calls import CallRequest
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import ToolPolicy
from holdfast.core.errors import DefinitionError, PayloadError, RunError
from holdfast.core.execution.calling.call_retries import retry_call
from holdfast.core.execution.calling.waits import WAITING, StillWaiting
from holdfast.core.execution.step import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.run.messages import UNREADABLE_ARGUMENTS, ToolCall

#: What a `ToolNode` gets for a call: a `ToolMessage`, a `Command`, or a list of them.
Execute = Callable[[ToolCallRequest], Awaitable[Any]]

#: The key of LangGraph's config for the answers to interrupts.
_SCRATCHPAD = "__pregel_scratchpad"

#: Records the calls of the current task.
CURRENT_CALLS: ContextVar["NodeCalls | None"] = ContextVar("holdfast_langgraph_calls", default=None)


class RunStopped(GraphBubbleUp):
    """Carries an error that ends the run past a `ToolNode`, which may turn errors into messages for the model."""

    def __init__(self, error: RunError) -> None:
        super().__init__(str(error))
        self.error = error


class _ToolErrorHandler(AsyncCallbackHandler):
    """Keeps the exception of a tool, of which its `ToolNode` returns only a message."""

    run_inline = True

    def __init__(self) -> None:
        self.error: BaseException | None = None

    async def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.error = error


class _GraphCall(CallRequest):
    """A call of a `ToolNode`."""

    def __init__(
        self, node_calls: "NodeCalls", call_id: str, request: ToolCallRequest, policy: ToolPolicy, make: Execute
    ) -> None:
        arguments = request.tool_call["args"]
        self._is_unreadable = is_unreadable(arguments)
        if self._is_unreadable:
            arguments, policy = {UNREADABLE_ARGUMENTS: UNREADABLE_REASON}, PURE  # the tool is not called
        arguments = to_json_value(arguments, "the arguments")
        super().__init__(
            call_id=call_id,
            tool=request.tool_call["name"],
            arguments=arguments,
            effect=policy.effect,
            reconcile=policy.reconcile,
            in_doubt=policy.in_doubt,
            approval=policy.request_approval(arguments),
        )
        self._node_calls, self._retry = node_calls, policy.retry
        self.request = request
        #: Calls the tool.
        self.make = make

    @property
    def schema(self) -> dict[str, Any] | None:
        return None if self.request.tool is None else _get_schema(self.request.tool)

    async def execute(self) -> Any:
        if self._is_unreadable:
            return self.error_result(f"The arguments cannot be read: {UNREADABLE_REASON}. The tool was not called.")
        try:
            value = await self._node_calls.execute(self, self._retry)
        except Exception as exc:  # of a tool, which may raise anything
            if not isinstance(exc, GraphBubbleUp | RunError):
                self.error = exc
            raise
        return WAITING if value is WAITING else self._node_calls.encode(self, value)

    def error_result(self, text: str) -> GraphCallResult:
        return self._encode_message(text, status="error")

    def reconciled_result(self, value: Any) -> GraphCallResult:
        content = value if isinstance(value, str) else to_json_value(value, "the result of a call")
        return self._encode_message(content, status="success")

    def _encode_message(self, content: Any, status: Literal["success", "error"]) -> GraphCallResult:
        message = ToolMessage(content, name=self.tool, tool_call_id=self.request.tool_call["id"], status=status)
        return self._node_calls.encode(self, message)

    def replace_arguments(self, arguments: Any) -> Any:
        """Make the call with the arguments that a person approved."""
        self.arguments = to_json_value(arguments, "the approved arguments")
        tool_call = {**self.request.tool_call, "args": self.arguments}
        self.request = self.request.override(tool_call=cast(LangChainToolCall, tool_call))
        return None

    def is_error(self, result: Any) -> bool:
        return isinstance(result, GraphCallResult) and result.error


class NodeCalls:
    """The tool calls of one attempt of a run."""

    def __init__(
        self, context: StepContext, policies: ToolPolicies, serde: SerializerProtocol, interrupts: Interrupts
    ) -> None:
        self._context, self._policies, self._serde, self._interrupts = context, policies, serde, interrupts
        log = GraphCallLog(context.state.history)
        #: Announced by an earlier process that did not record their results.
        self._unresolved = set(log.pending) - log.interrupted
        #: Announced by an earlier process that had their tools.
        self._known = set(log.pending) - log.unknown
        #: What their tools have asked with `interrupt`, by call id.
        self._asked = log.asked
        #: The tasks that make the calls of the current step, by call id.
        self._tasks = log.tasks
        self._step = context.state.steps
        self._arrived: list[_GraphCall] = []
        #: The calls that are announced or made.
        self._under_way: set[asyncio.Future[None]] = set()
        self._announcing: asyncio.Task[None] | None = None

    def use(self) -> None:
        """Record the calls that this task and its children make."""
        CURRENT_CALLS.set(self)

    async def call(self, request: ToolCallRequest, execute: Execute) -> Any:
        """Return the recorded result of a call, or make it.

        Raises:
            RunStopped: the run has to end here.
        """
        try:
            call_id = self._make_call_id(request)
            call = _GraphCall(self, call_id, request, self._get_policy(request, call_id), execute)
            result = await self._make(call)
        except RunError as exc:
            raise RunStopped(exc) from exc
        return self._serde.loads_typed((result.type, result.body))

    async def _make(self, call: _GraphCall) -> GraphCallResult:
        """Make a call. If it waits, the other calls of the batch end before the run waits, too."""
        ended = asyncio.get_running_loop().create_future()
        # From now on, not from its start: a call that waits at once would end the batch before this one is announced.
        self._under_way.add(ended)
        try:
            await self._announce(call)
            result = await self._context.tool_calls.try_execute(call)
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)
        if result is WAITING:
            if self._under_way:
                await asyncio.wait({*self._under_way})
            raise self._context.waits.make_error()
        return cast(GraphCallResult, result)

    def encode(self, call: _GraphCall, value: Any) -> GraphCallResult:
        """Return what a `ToolNode` gets for the call as an entry."""
        return encode_result(self._serde, call.call_id, call.tool, value)

    async def execute(self, call: _GraphCall, retry: Retry | None) -> Any:
        """Return what the tool returns, or `WAITING`."""
        if retry is None:
            return await self._execute(call)
        start = functools.partial(self._execute, call)
        attempt = self._context.attempt
        return await retry_call(attempt, retry, call.tool, call.call_id, start, outcomes=(GraphBubbleUp,))

    async def _execute(self, call: _GraphCall) -> Any:
        """Execute a call, with the answers to what its tool has asked. Return `WAITING` if one of them is missing."""
        asked = self._asked.get(call.call_id, ())
        answers = [self._find_answer(call, number, value) for number, value in enumerate(asked)]
        if WAITING in answers:
            return self._suspend(call, asked)
        if answers:  # the write that consumes them comes before the tool that reads them
            await self._context.attempt.saver.save(must_succeed=True)
        counter = itertools.count()
        _answer_interrupts(call.request, answers, counter.__next__)
        errors = _ToolErrorHandler()
        config = call.request.runtime.config
        config["callbacks"] = merge_configs(config, {"callbacks": [errors]})["callbacks"]
        try:
            value = await call.make(call.request)
            if isinstance(value, ToolMessage) and value.status == "error":
                call.error = errors.error or ToolException(str(value.text))
            return value
        except GraphBubbleUp as exc:
            if isinstance(exc, GraphInterrupt) and next(counter) > len(answers):
                return self._suspend(call, (*asked, to_plain_data(exc.args[0][0].value)))
            self._suspend(call, asked)
            raise  # of a graph within the tool: LangGraph has a place for its answers

    def _suspend(self, call: _GraphCall, asked: tuple[Any, ...]) -> StillWaiting:
        """Record what a call has asked: it is not in doubt, and it is repeated with the answers."""
        self._asked[call.call_id] = asked
        self._context.state.history.append(CallInterrupted(call.call_id, asked))
        if asked:
            self._find_answer(call, len(asked) - 1, asked[-1])
        return WAITING

    def _find_answer(self, call: _GraphCall, number: int, value: Any) -> Any:
        """Return the answer to what a call has asked, or `WAITING`.

        LangGraph's answers belong to the node, in the order in which its calls have asked. A call that has ended asks
        no more, so the next one would get its answer. Hence each question of each call has an id of its own.
        """
        place = f"{_get_task(call.request)}|{call.call_id}|{number}"
        return self._interrupts.find_answer(hashlib.blake2b(place.encode(), digest_size=16).hexdigest(), value)

    def _get_policy(self, request: ToolCallRequest, call_id: str) -> ToolPolicy:
        name, tool = request.tool_call["name"], request.tool
        if tool is None and call_id not in self._known:
            return PURE  # its `ToolNode` reports it to the model
        return find_policy(self._policies, name, tool, None if tool is None else tool.metadata)

    def _make_call_id(self, request: ToolCallRequest) -> str:
        """Return the model's id of the call. If another task of the step has used it, a digest of the task is added.

        A subgraph takes all its steps within one of the run, and a model may use an id again.
        """
        if self._step != self._context.state.steps:
            self._step = self._context.state.steps
            self._tasks, self._unresolved, self._asked = {}, set(), {}
        call_id, task = str(request.tool_call["id"]), _get_task(request)
        if self._tasks.setdefault(call_id, task) == task:
            return call_id
        call_id = f"{call_id}@{hashlib.blake2b(task.encode(), digest_size=4).hexdigest()}"
        self._tasks[call_id] = task
        return call_id

    async def _announce(self, call: _GraphCall) -> None:
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

    async def _announce_calls(self, calls: list[_GraphCall]) -> None:
        context = self._context
        self._refuse_removed_tools(calls)
        new = [call for call in calls if call.call_id not in self._unresolved]
        context.tool_calls.add_approvals(new)
        if new:
            context.state.history.append(
                ReplyEntry(
                    tool_calls=tuple(
                        ToolCall(id=call.call_id, name=call.tool, arguments=call.arguments) for call in new
                    ),
                    tasks=tuple(self._tasks[call.call_id] for call in new),
                    unknown=tuple(call.call_id for call in new if call.request.tool is None),
                )
            )
        if old := {call.call_id: call.effect for call in calls if call.call_id in self._unresolved}:
            await context.tool_calls.announce(old, resumed=True)
        if new:
            await context.tool_calls.announce({call.call_id: call.effect for call in new})

    def _refuse_removed_tools(self, calls: Iterable[_GraphCall]) -> None:
        """Apply the agent's policy to calls that an earlier process announced, and whose tool a deploy has removed."""
        waiting = self._known - self._context.state.results.keys()
        self._context.refuse_removed_tools(
            [call.tool for call in calls if call.request.tool is None and call.call_id in waiting]
        )


def encode_result(serde: SerializerProtocol, call_id: str, tool: str, value: Any) -> GraphCallResult:
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
    return GraphCallResult(call_id=call_id, tool=tool, content=text, error=error, type=type_, body=body)


def _answer_interrupts(request: ToolCallRequest, answers: list[Any], count: Callable[[], int]) -> None:
    """Let `interrupt` return these answers within the call, and count how often it is called.

    `interrupt` looks for its answers in the config of a task, which each call of a `ToolNode` has a copy of.
    """
    config = request.runtime.config
    configurable = config["configurable"]
    own = replace(
        configurable[_SCRATCHPAD], interrupt_counter=count, get_null_resume=lambda consume: None, resume=answers
    )
    config["configurable"] = {**configurable, _SCRATCHPAD: own}
    var_child_runnable_config.set(config)  # for a wrapper of the call


def _get_task(request: ToolCallRequest) -> str:
    return str(request.runtime.config.get("configurable", {}).get("checkpoint_ns", ""))


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


def collect_schemas(graph: Graph) -> dict[str, dict[str, Any]]:
    """Return the schemas of the tools that the `ToolNode`s of a graph and of its subgraphs call, by name."""
    schemas: dict[str, dict[str, Any]] = {}
    for node in graph.nodes.values():
        if isinstance(node.bound, Pregel):
            schemas |= collect_schemas(node.bound)
        elif isinstance(node.bound, ToolNode):
            schemas |= {name: _get_schema(tool) for name, tool in node.bound.tools_by_name.items()}
    return schemas


def _get_schema(tool: BaseTool) -> dict[str, Any]:
    schema: dict[str, Any] = convert_to_openai_tool(tool)["function"].get("parameters") or {}
    return schema


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
