"""Tool calls as a loop hands them to `StepContext`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.core.agents.calls import Effect, InDoubt, Reconcile
from holdfast.core.run.waiting import ApprovalRequest


class AnnouncedCall(Protocol):
    """A call that a reply asks for, before it is made. A `CallRequest` is one."""

    @property
    def call_id(self) -> str: ...

    @property
    def effect(self) -> Effect: ...


class RequestedCall(AnnouncedCall, Protocol):
    """A call with its arguments, as the model gave them."""

    @property
    def tool(self) -> str: ...

    @property
    def arguments(self) -> Any: ...


class ExecutableCall(RequestedCall, Protocol):
    """One tool call for `ToolCalls.execute`. A `CallRequest` is one."""

    @property
    def reconcile(self) -> Reconcile | None: ...

    @property
    def in_doubt(self) -> InDoubt: ...

    @property
    def in_thread(self) -> bool:
        """Whether the tool runs in a thread: `execute` is called with `ToolContext.threads` for it."""
        ...

    @property
    def approval(self) -> ApprovalRequest | None:
        """Set if a person has to approve the call before it is made."""
        ...

    def execute(self) -> Awaitable[Any]:
        """Make the call. The loop's codec has to be able to store the result."""
        ...

    def replace_arguments(self, arguments: Any) -> Any:
        """Make the call with these arguments instead. Returns a result for the model if they do not fit."""
        ...

    def error_result(self, text: str) -> Any:
        """Return a result, in the same form, with a text for the model."""
        ...

    def reconciled_result(self, value: Any) -> Any:
        """Return a result, in the same form, from the value that a reconcile found."""
        ...

    def is_error(self, result: Any) -> bool: ...


def _is_never_error(result: Any) -> bool:
    return False


@dataclass(slots=True, kw_only=True)
class CallRequest:
    """An `ExecutableCall` made of functions, for loops that have no class of their own for calls."""

    call_id: str
    tool: str
    arguments: Any
    effect: Effect
    execute: Callable[[], Awaitable[Any]]
    error_result: Callable[[str], Any]
    reconciled_result: Callable[[Any], Any]
    reconcile: Reconcile | None = None
    in_doubt: InDoubt = "report"
    is_error: Callable[[Any], bool] = _is_never_error
    in_thread: bool = False
    approval: ApprovalRequest | None = None

    def replace_arguments(self, arguments: Any) -> Any:
        return self.error_result("The arguments of this call cannot be replaced. The tool was not called.")
