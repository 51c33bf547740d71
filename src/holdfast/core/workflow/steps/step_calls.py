"""The calls that a workflow can make as steps: of a tool, of any function, of another agent."""

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import CallRequest, Effect
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.agents.tool_threads import call_in_thread
from holdfast.core.errors import DefinitionError, PayloadError, ToolFailed
from holdfast.core.execution.attempt import Attempt
from holdfast.core.execution.calling.call_retries import await_thread, call_tool
from holdfast.core.json_value import to_json_value
from holdfast.core.loop import Loop
from holdfast.core.run.messages import ToolResult
from holdfast.core.run.waiting import Deferred, Suspend
from holdfast.core.workflow.steps.step_errors import StepError, StepErrorKind


class StepCall(CallRequest):
    """A call that is a step of its own. Its result is a `ToolResult`, or an error in the form of `StepError`."""

    __slots__ = ("attempt", "errors", "key", "returns")

    #: It belongs to an undo: neither bounds nor the budget of the run keep it from being made.
    is_cleanup = False
    #: It starts a run. With changed arguments it would start another.
    starts_run = False
    #: holdfast itself computes its value, which is not redacted.
    is_computed = False

    def __init__(
        self,
        attempt: Attempt,
        *,
        tool: str,
        arguments: Any,
        effect: Effect,
        key: str | None = None,
        returns: Any = Any,
        errors: tuple[type[Exception], ...] = (),
        **options: Any,
    ) -> None:
        """Make a step that has no id yet.

        Args:
            returns: the type of the result.
            errors: exceptions that the workflow gets as they are.
            options: as for `CallRequest`.

        Raises:
            DefinitionError: the key is not text.
            PayloadError: the arguments have no JSON form.
        """
        if key is not None and (not isinstance(key, str) or not key):
            raise DefinitionError(f"the key of a step of {tool} is {key!r:.80}: give a text that is not empty")
        # Code has no use for a text about an unknown outcome: only a person can decide.
        super().__init__(
            call_id="",
            tool=tool,
            arguments=to_json_value(arguments, f"the arguments of {tool}"),
            effect=effect,
            in_doubt="park",
            **options,
        )
        self.attempt, self.key, self.returns, self.errors = attempt, key, returns, errors

    @abstractmethod
    async def perform(self) -> Any:
        """Make the call and return what it returns."""

    async def execute(self) -> Any:
        stop = self.attempt.stop_state
        try:
            returned = await self.perform()
            return returned if isinstance(returned, Deferred) else self.value_result(returned)
        except (Exception, asyncio.CancelledError) as exc:  # user code may raise anything: the workflow gets it
            if isinstance(exc, Suspend | ToolFailed) or stop.is_resumable_after(exc):
                raise
            task = asyncio.current_task()
            if isinstance(exc, asyncio.CancelledError) and (
                stop.is_stopping or (task is not None and task.cancelling())
            ):
                raise  # no result: the call was cancelled, or its thread was not started in a run that stops
            if stop.is_stopped and not self.in_thread:
                raise
            return self._make_error_result(StepError.from_exception(exc, self.errors))

    def value_result(self, value: Any) -> ToolResult:
        """Return the result with this value.

        Raises:
            PayloadError: the value has no JSON form, or does not fit the annotation of the function.
        """
        content = to_json_value(value, f"the result of {self.tool}")
        if not self.is_computed and (redact := self.attempt.services.redact) is not None:
            content = redact(content)
        self.load_value(content)
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content, computed=self.is_computed)

    def load_value(self, content: Any) -> Any:
        """Return the value of the step from its stored form."""
        try:
            return msgspec.convert(content, self.returns)
        except (msgspec.ValidationError, TypeError) as exc:
            raise PayloadError(f"the result of {self.tool} does not fit its annotation: {exc}") from exc

    def load(self, result: ToolResult) -> Any:
        """Return the value of a recorded result, or raise its error."""
        if result.error:
            raise StepError.from_content(result.content).to_exception(self.tool, self.errors)
        return self.load_value(result.content)

    def _make_error_result(self, error: StepError) -> ToolResult:
        if (redact := self.attempt.services.redact) is not None:
            error = error.redact(redact)
        content = msgspec.to_builtins(error)
        return ToolResult(call_id=self.call_id, tool=self.tool, content=content, error=True, computed=True)

    def _make_own_error(self, kind: StepErrorKind, type_name: str, text: str) -> ToolResult:
        return self._make_error_result(StepError(type_name=type_name, message=text, kind=kind))

    def error_result(self, text: str) -> ToolResult:
        return self._make_own_error("raised", "Error", text)

    def expired_result(self, text: str) -> ToolResult:
        return self._make_own_error("timeout", "TimeoutError", text)

    def denied_result(self, text: str) -> ToolResult:
        return self._make_own_error("denied", "Denied", text)

    def cancelled_result(self) -> ToolResult:
        """Return the result of a call that the workflow has cancelled itself."""
        text = "the workflow cancelled it; it may or may not have taken effect"
        return self._make_own_error("cancelled", "CancelledError", text)

    def reconciled_result(self, value: Any) -> ToolResult:
        try:
            return self.value_result(value)
        except PayloadError as exc:
            return self._make_error_result(StepError.from_exception(exc, self.errors))

    def is_error(self, result: Any) -> bool:
        return isinstance(result, ToolResult) and result.error


class ToolStep(StepCall):
    """A call of a tool."""

    __slots__ = ("_tool", "_validated", "timeout", "undo")

    def __init__(self, attempt: Attempt, tool: Tool, arguments: Mapping[str, Any], key: str | None) -> None:
        """Make the step.

        Raises:
            TypeError: the arguments do not fit the tool.
        """
        policy, returns = tool.policy, tool.returns
        super().__init__(
            attempt,
            tool=tool.name,
            arguments=arguments,
            effect=policy.effect,
            key=key,
            returns=Any if returns is Deferred else returns,
            errors=tool.errors,
            reconcile=policy.reconcile,
            in_thread=tool.in_thread,
        )
        self._tool, self.undo, self.timeout = tool, tool.undo, tool.timeout
        self._validated = self._check(self.arguments)
        self.approval = policy.request_approval(self._validated)

    def _check(self, arguments: Any) -> dict[str, Any]:
        try:
            return self._tool.check(arguments)
        except ValueError as exc:
            raise TypeError(f"the arguments of {self._tool.name} do not fit: {exc}") from exc

    @property
    def schema(self) -> dict[str, Any]:
        return self._tool.schema.parameters

    def replace_arguments(self, arguments: Any) -> Any:
        try:
            self._validated = self._check(arguments)
        except TypeError as exc:
            return self.error_result(f"the approved arguments do not fit: {exc}")
        self.arguments = arguments
        return None

    async def perform(self) -> Any:
        tool = self._tool
        try:
            return await call_tool(self.attempt, tool, self.call_id, self._start)
        except Exception as exc:
            resumable = isinstance(exc, Suspend) or self.attempt.stop_state.is_resumable_after(exc)
            if tool.on_error != "raise" or resumable:
                raise
            raise ToolFailed(tool.name, exc) from exc

    def _start(self) -> Coroutine[Any, Any, Any]:
        """Start a try. The tool may have changed the arguments of an earlier one."""
        return self._tool.call(self._validated if self._tool.policy.retry is None else self._check(self.arguments))


class FunctionStep(StepCall):
    """A call of any function, recorded inline."""

    __slots__ = ("_function",)

    def __init__(self, attempt: Attempt, function: Callable[[], Any], **options: Any) -> None:
        in_thread = not inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function)))
        super().__init__(attempt, in_thread=in_thread, **options)
        self._function = function

    async def perform(self) -> Any:
        if not self.in_thread:
            return await self._function()
        returned = await await_thread(self.attempt, call_in_thread(self._function, {}))
        return await returned if inspect.isawaitable(returned) else returned


class ValueStep(StepCall):
    """A value that the workflow makes itself, such as the current time: recorded, so that it stays the same."""

    __slots__ = ("_make",)

    is_computed = True

    def __init__(
        self, attempt: Attempt, tool: str, make: Callable[[], Any], arguments: Any = None, key: str | None = None
    ) -> None:
        super().__init__(attempt, tool=tool, arguments=arguments, effect=Effect.PURE, key=key)
        self._make = make

    async def perform(self) -> Any:
        return self._make()


class AgentStep(StepCall):
    """A child run of another agent or workflow. A repeated call attaches to it."""

    __slots__ = ("_agent", "_loop")

    starts_run = True

    def __init__(
        self, attempt: Attempt, agent: AgentSource, prompt: str, inputs: Mapping[str, Any] | None, key: str | None
    ) -> None:
        arguments: dict[str, Any] = {"prompt": prompt, "inputs": dict(inputs)} if inputs else {"prompt": prompt}
        super().__init__(attempt, tool=agent.name, arguments=arguments, effect=Effect.IDEMPOTENT, key=key)
        self._agent = agent
        self._loop: Loop = attempt.services.get_loop(agent)

    async def perform(self) -> Any:
        result = await current_call().run(self._agent, self.arguments["prompt"], inputs=self.arguments.get("inputs"))
        return self._loop.dump_output(result.output)

    def load_value(self, content: Any) -> Any:
        return self._loop.load_output(content)
