"""The effect of a tool, and the policies for a call whose outcome is unknown."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from holdfast.core.agents.tool_context import ToolContext


class Effect(StrEnum):
    """The effect of calling a tool twice."""

    #: It changes nothing. May be called again at any time.
    PURE = "pure"
    #: Calling it again with the same idempotency key changes nothing more.
    IDEMPOTENT = "idempotent"
    #: It must not happen twice. The default.
    ONCE = "once"


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
