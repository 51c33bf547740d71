"""The native loop: ask the model, call the tools it asks for, repeat."""

import asyncio
import inspect
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.agents.agent import AgentSource, Model
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import CURRENT_REPLY
from holdfast.core.errors import (
    DefinitionError,
    PayloadError,
    RepeatedToolCalls,
    ToolFailed,
    format_error,
)
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.call_retries import call_tool
from holdfast.core.execution.calling.waits import WAITING
from holdfast.core.execution.native_calls import list_finished_calls, list_pending_calls
from holdfast.core.execution.step import StepContext
from holdfast.core.json_value import to_json_value
from holdfast.core.loop import FinishedCall, Loop, PendingCall
from holdfast.core.run.info import NATIVE_LOOP_NAME, AgentDetails
from holdfast.core.run.messages import (
    NATIVE_CODEC,
    NO_USAGE,
    ONE_REQUEST,
    UNREADABLE_ARGUMENTS,
    MessageCodec,
    Reply,
    System,
    ToolCall,
    ToolResult,
    Usage,
    User,
    validate_reply,
)
from holdfast.core.run.prompt import dump_json_parts, summarize_prompt
from holdfast.core.run.waiting import Deferred, Suspend


class RepeatCounter:
    """Counts replies in a row that ask for the same tools with the same arguments."""

    def __init__(self, earlier_calls: Iterable[Any] = ()) -> None:
        """Count the calls of earlier replies first, in their order."""
        self._last: bytes | None = None
        self._times = 0
        for calls in earlier_calls:
            self.count(calls)

    def count(self, calls: Any) -> int:
        """Return how many times in a row these calls were asked for, this time included; 0 for no calls.

        Args:
            calls: their names and arguments as plain data, without their ids.
        """
        if not calls:
            self._last, self._times = None, 0
            return 0
        now = msgspec.json.encode(calls)
        self._times = self._times + 1 if now == self._last else 1
        self._last = now
        return self._times


class NativeLoop:
    """Executes agents made of a model callable and tools."""

    name = NATIVE_LOOP_NAME

    @property
    def codec(self) -> MessageCodec:
        return NATIVE_CODEC

    def pending_calls(self, history: Sequence[Any]) -> Sequence[PendingCall]:
        return list_pending_calls(history)

    def finished_calls(
        self, history: Sequence[Any], results: Mapping[str, Any] | None = None
    ) -> Sequence[FinishedCall]:
        return list_finished_calls(history, results)

    def make_result(self, call: PendingCall, content: Any, *, error: bool = False) -> Any:
        return ToolResult(
            call_id=call.call_id, tool=call.tool, content=to_json_value(content, "the answer"), error=error
        )

    def make_message(self, content: str | list[Any]) -> Any:
        return make_prompt_message(content)

    def dump_output(self, output: Any) -> Any:
        return to_json_value(output, "the output")

    def load_output(self, stored: Any) -> Any:
        return stored

    def dump_prompt(self, parts: Sequence[Any]) -> list[Any]:
        return dump_json_parts(parts)

    async def run(self, context: StepContext) -> Any:
        """Return the text of the first reply that asks for no tools."""
        if context.begins:
            instructions = context.profile.instructions if not context.state.history else ""
            system = [System(instructions)] if instructions else []
            await context.start([*system, make_prompt_message(context.prompt)])
        conversation = _Conversation(context)
        reply = conversation.pending_reply()
        resumed = reply is not None
        while True:
            if reply is None:
                reply = await conversation.ask_model()
            if not reply.tool_calls:
                if not (resumed and conversation.is_last_step_counted):
                    await context.end_step()
                if not context.has_messages:
                    return reply.text
            else:
                context.state.history.extend(await conversation.call_tools(reply.tool_calls, resumed=resumed))
                await context.end_step()
            reply, resumed = None, False


class _Conversation:
    """The model calls and tool calls of one conversation."""

    def __init__(self, context: StepContext) -> None:
        self._context, self._attempt = context, context.attempt
        self._history = context.state.history
        self._tools = context.profile.tools
        for tool in self._tools.values():
            if tool.effect is Effect.TRANSACTION:
                self._attempt.saver.check_transaction(tool.name, in_thread=tool.in_thread)
        self._schemas = tuple(tool.schema for tool in self._tools.values())
        self._max_repeats = context.profile.max_repeats
        self._repeats = RepeatCounter(map(_list_requested_calls, self._replies))

    def pending_reply(self) -> Reply | None:
        """Return the reply that ends a saved conversation: a tool has no result, or it is the answer."""
        last = self._history[-1]
        return last if isinstance(last, Reply) else None

    @property
    def is_last_step_counted(self) -> bool:
        """Whether the step of every reply was finished: a process may end between saving an answer and its step.

        If compaction removed replies, the step counts as finished: it must not be counted twice.
        """
        return len(self._replies) <= self._context.state.phase_steps

    @property
    def _replies(self) -> list[Reply]:
        """The replies of this turn."""
        return [message for message in self._history[self._history.turn_start :] if isinstance(message, Reply)]

    async def ask_model(self) -> Reply:
        """Append the model's next reply to the history and return it."""
        context = self._context
        steered = await context.begin_step(self._compact if context.profile.compact is not None else None)
        if steered:
            self._history.extend(map(make_prompt_message, steered))
        if context.profile.model is None:  # `Agent` checks this; a user's own profile may not
            raise DefinitionError(f"run {context.run_id}: its agent has no model")
        reply = await self._request_reply(context.profile.model)
        self._history.append(reply)
        context.add_usage(_ensure_request_counted(reply.usage))
        await context.emit_reply(reply.text)
        if self._repeats.count(_list_requested_calls(reply)) > self._max_repeats:
            raise RepeatedToolCalls(context.run_id, reply.tool_calls[0].name, self._max_repeats)
        return reply

    async def _request_reply(self, model: Model) -> Reply:
        """Call the model until it replies, as the agent's `Retry` says."""
        model_calls = self._context.model_calls
        while True:
            if model_calls.enters:
                await model_calls.enter(get_model_name(model))
            CURRENT_REPLY.set(self._context)
            asked: Any = None
            try:
                asked = model(self._history, self._schemas)
                reply = await asked
            except Exception as exc:  # a provider may raise anything
                if isinstance(exc, TypeError) and asked is not None and not inspect.isawaitable(asked):
                    raise DefinitionError(
                        f"the model of run {self._context.run_id} is a plain function: write it as "
                        "`async def model(messages, tools)`"
                    ) from None
                await model_calls.on_error(exc)
            else:
                model_calls.on_reply(reply.model if isinstance(reply, Reply) else "")
                return validate_reply(reply)
            finally:
                CURRENT_REPLY.set(None)  # `reset` raises if the coroutine is closed from elsewhere

    async def _compact(self) -> None:
        compact = self._context.profile.compact
        shorter = await compact(self._history) if compact is not None else None
        if shorter is not None:
            self._history.rewrite(shorter)

    async def call_tools(self, calls: Sequence[ToolCall], *, resumed: bool) -> list[ToolResult]:
        """Make the calls, side by side unless a tool is sequential, and return their results in order."""
        if resumed:
            self._check_missing_tools(calls)
        tool_calls, requests = self._context.tool_calls, list(map(self._make_call, calls))
        if not resumed:
            tool_calls.add_approvals(requests)
        in_order = len(calls) > 1 and self._has_sequential_tool(calls)
        effects = {request.call_id: request.effect for request in requests}
        await tool_calls.announce(effects, resumed=resumed, in_order=in_order)
        if len(requests) == 1:
            results = [await tool_calls.try_execute(requests[0])]
        elif in_order:
            results = await self._call_in_order(requests)
        else:
            results = await self._call_side_by_side(requests)
        if WAITING in results:
            raise self._context.waits.make_error()
        return results

    def _has_sequential_tool(self, calls: Sequence[ToolCall]) -> bool:
        return any(call.name in self._tools and self._tools[call.name].sequential for call in calls)

    async def _call_in_order(self, requests: Sequence["_Call"]) -> list[Any]:
        """Return the results up to the first call that waits: those after it have to wait too."""
        results: list[Any] = []
        for request in requests:
            results.append(await self._context.tool_calls.try_execute(request))
            if results[-1] is WAITING:
                break
        return results

    async def _call_side_by_side(self, requests: Sequence["_Call"]) -> list[Any]:
        tasks = [asyncio.create_task(self._context.tool_calls.try_execute(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except Exception as exc:
            self._attempt.stop_state.record_call_error(exc)
            raise
        finally:
            for task in tasks:
                task.cancel()
            # Cancelled siblings have to end before the run is finalized.
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check_missing_tools(self, calls: Sequence[ToolCall]) -> None:
        """Apply the agent's policy to a saved reply that asks for tools which a deploy has removed."""
        missing = [
            call.name for call in calls if call.name not in self._tools and call.id not in self._context.state.results
        ]
        self._context.refuse_removed_tools(missing)

    def _make_call(self, call: ToolCall) -> "_Call":
        tool = self._tools.get(call.name)
        if tool is None:
            return _RefusedCall(
                call, f"There is no tool {call.name!r}. Known tools: {', '.join(self._tools) or 'none'}."
            )
        if isinstance(call.arguments, dict) and UNREADABLE_ARGUMENTS in call.arguments:
            reason = call.arguments[UNREADABLE_ARGUMENTS]
            return _RefusedCall(call, f"The arguments cannot be read: {reason}. The tool was not called.")
        try:
            arguments = tool.check(call.arguments)
        except ValueError as exc:
            return _RefusedCall(call, f"The arguments do not fit: {exc}. The tool was not called.")
        return _ToolCall(call, tool, arguments, self._attempt)


class _Call(CallRequest):
    """A call whose results are messages of this loop."""

    __slots__ = ()

    def error_result(self, text: str) -> ToolResult:
        return ToolResult(call_id=self.call_id, tool=self.tool, content=text, error=True)

    def reconciled_result(self, value: Any) -> ToolResult:
        try:
            content = to_json_value(value, f"the reconciled result of {self.tool}")
        except PayloadError as exc:
            return self.error_result(f"The call has taken effect, but its result is lost: {exc}")
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content)

    def is_error(self, result: Any) -> bool:
        return isinstance(result, ToolResult) and result.error


class _RefusedCall(_Call):
    """A call that cannot be made: its result is a text for the model."""

    __slots__ = ("_refusal",)

    def __init__(self, call: ToolCall, refusal: str) -> None:
        super().__init__(call_id=call.id, tool=call.name, arguments=call.arguments, effect=Effect.PURE)
        self._refusal = refusal

    async def execute(self) -> Any:
        return self.error_result(self._refusal)

    def replace_arguments(self, arguments: Any) -> Any:
        return self.error_result(self._refusal)


class _ToolCall(_Call):
    """A call of a tool, with validated arguments."""

    __slots__ = ("_attempt", "_tool", "_validated_arguments")

    def __init__(self, call: ToolCall, tool: Tool, arguments: dict[str, Any], attempt: Attempt) -> None:
        policy = tool.policy
        super().__init__(
            call_id=call.id,
            tool=call.name,
            arguments=call.arguments,
            effect=policy.effect,
            reconcile=policy.reconcile,
            in_doubt=policy.in_doubt,
            in_thread=tool.in_thread,
            approval=policy.request_approval(arguments),
        )
        self._tool, self._validated_arguments, self._attempt = tool, arguments, attempt

    @property
    def schema(self) -> dict[str, Any]:
        return self._tool.schema.parameters

    def replace_arguments(self, arguments: Any) -> Any:
        try:
            self._validated_arguments = self._tool.check(arguments)
        except ValueError as exc:
            return self.error_result(f"The approved arguments do not fit: {exc}. The tool was not called.")
        self.arguments = arguments
        return None

    async def execute(self) -> Any:
        tool, attempt = self._tool, self._attempt
        try:
            returned = await call_tool(attempt, tool, self.call_id, self._start)
            if isinstance(returned, Deferred):
                return returned
            content = to_json_value(returned, f"the result of {tool.name}")
        except (Exception, asyncio.CancelledError) as exc:  # user code may raise anything: it is a result for the model
            if isinstance(exc, Suspend) or attempt.stop_state.is_resumable_after(exc):
                raise  # the tool waits, parks the run, or announces a shutdown
            cancelled = isinstance(exc, asyncio.CancelledError)
            if cancelled:
                await attempt.receive_stop()
            # An exception from a call that the run cancelled is no result. A thread cannot be cancelled: its is one.
            # `task.cancelling()` does not tell: up to Python 3.12 a failed TaskGroup leaves it above zero.
            if attempt.stop_state.is_stopping and (cancelled or not tool.in_thread):
                raise
            self.error = exc
            if tool.on_error == "raise":
                raise ToolFailed(tool.name, exc) from exc
            return self.error_result(format_error(exc))
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content)

    def value_result(self, value: Any) -> ToolResult:
        content = to_json_value(value, f"the result of {self.tool}")
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content)

    def _start(self) -> Coroutine[Any, Any, Any]:
        """Start a try. The tool may have changed the arguments of an earlier one."""
        arguments = self._validated_arguments if self._tool.policy.retry is None else self._tool.check(self.arguments)
        return self._tool.call(arguments)


def make_prompt_message(prompt: str | list[Any]) -> User:
    """Return a prompt, or a message that was sent to the run, as a message of the history."""
    return User(prompt) if isinstance(prompt, str) else User(summarize_prompt(prompt), prompt)


def get_model_name(model: Model) -> str:
    """Return the name of a model function, or of the class of a model object."""
    return getattr(model, "__name__", type(model).__name__)


def _ensure_request_counted(usage: Usage) -> Usage:
    """Count one request for a model that does not count its requests."""
    if usage is NO_USAGE:
        return ONE_REQUEST
    return usage if usage.requests > 0 else usage + ONE_REQUEST


def _list_requested_calls(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in reply.tool_calls]


NATIVE_LOOP = NativeLoop()


def get_loop(source: AgentSource) -> Loop:
    """Return the loop that executes the runs of this agent."""
    return AgentDetails.from_source(source).loop or NATIVE_LOOP
