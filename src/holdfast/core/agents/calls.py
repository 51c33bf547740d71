"""A call that the kernel can execute, the effect of a tool, and the policies for a call whose outcome is unknown."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import ApprovalRequest


class Effect(StrEnum):
    """The effect of calling a tool twice."""

    #: It changes nothing. May be called again at any time.
    PURE = "pure"
    #: Repeating it with the same idempotency key has no further effect.
    IDEMPOTENT = "idempotent"
    #: It must not happen twice. The default.
    ONCE = "once"
    #: It writes to the store's own database, in the transaction that records its result.
    TRANSACTION = "transaction"


#: The effects by name, for completion and type checks.
EffectName = Literal["pure", "idempotent", "once", "transaction"]

#: For a `once` call in doubt: report to the model that the outcome is unknown, or park the run.
InDoubt = Literal["report", "park"]

#: For an error that a tool raises: report it to the model, or fail the run.
OnError = Literal["report", "raise"]


class Completed(msgspec.Struct, frozen=True):
    """Reconciled: the call took effect, with this result."""

    result: Any


class Reconciliation(StrEnum):
    """Reconciled, without a result."""

    #: The call never took effect; it is made now.
    NOT_EXECUTED = "did not happen"
    #: The outcome cannot be determined; the tool's in-doubt policy decides.
    UNKNOWN = "unknown"


NOT_EXECUTED: Final = Reconciliation.NOT_EXECUTED
UNKNOWN: Final = Reconciliation.UNKNOWN

#: Finds the outcome of a call, from its identity and arguments.
Reconcile = Callable[[ToolContext], Awaitable[Completed | Reconciliation]]

#: Undoes a call, given the call and its result. Sync or async.
Undo = Callable[[ToolContext, Any], Any]


class CallRequest(ABC):
    """A tool call that the kernel can execute. Each loop has a subclass, which knows the form of its results."""

    __slots__ = (
        "approval",
        "arguments",
        "call_id",
        "effect",
        "error",
        "in_doubt",
        "in_thread",
        "number",
        "reconcile",
        "tool",
    )

    def __init__(
        self,
        *,
        call_id: str,
        tool: str,
        arguments: Any,
        effect: Effect,
        reconcile: Reconcile | None = None,
        in_doubt: InDoubt = "report",
        in_thread: bool = False,
        approval: ApprovalRequest | None = None,
        number: int = 0,
    ) -> None:
        """Make a request.

        Args:
            arguments: as the model gave them.
            in_thread: the tool runs in a thread: `execute` is called with `ToolContext.threads` for it.
            approval: set if a person has to approve the call before it is made.
            number: of a call that is a step of its own: its place among the calls of the run, from one. Zero: it
                belongs to the current step.
        """
        self.call_id, self.tool, self.arguments = call_id, tool, arguments
        self.effect, self.reconcile, self.in_doubt = effect, reconcile, in_doubt
        self.in_thread, self.approval, self.number = in_thread, approval, number
        #: The exception of the tool that `execute` has turned into a result, or that fails the run: for observers.
        self.error: BaseException | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the arguments, for a person who edits them; `None` if it is not known."""
        return None

    @abstractmethod
    def execute(self) -> Awaitable[Any]:
        """Make the call. The loop's codec has to be able to store the result."""

    @abstractmethod
    def error_result(self, text: str) -> Any:
        """Return a result, in the same form, with a text for the model."""

    def value_result(self, value: Any) -> Any:
        """Return the result, in the same form, of a function that returned `value`. For `transaction` tools.

        Raises:
            PayloadError: the value has no JSON form.
            DefinitionError: the loop has no tools with this effect.
        """
        raise DefinitionError(f"tool {self.tool}: its loop has no tools with the effect transaction")

    def expired_result(self, text: str) -> Any:
        """Return the result of a call that waited and got no answer in time."""
        return self.error_result(text)

    def denied_result(self, text: str) -> Any:
        """Return the result of a call that a person has denied."""
        return self.error_result(text)

    @abstractmethod
    def reconciled_result(self, value: Any) -> Any:
        """Return a result, in the same form, from the value that a reconcile found."""

    def replace_arguments(self, arguments: Any) -> Any:
        """Make the call with these arguments instead. Returns a result for the model if they do not fit."""
        return self.error_result("The arguments of this call cannot be replaced. The tool was not called.")

    def is_error(self, result: Any) -> bool:
        return False

    def classify_outcome(
        self, result: Any, error: BaseException | None, *, waits: bool
    ) -> Literal["done", "error", "waiting", "raised"]:
        """Return how the call has ended: with this result, or with an error and none."""
        if error is not None:
            return "raised"
        if waits:
            return "waiting"
        return "error" if self.is_error(result) else "done"
