"""What a tool does to the world, and what is done when nobody knows whether it did."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from holdfast.core.tool_context import ToolContext


class Effect(StrEnum):
    """What calling a tool twice would do."""

    #: It changes nothing. May be called again at any time.
    PURE = "pure"
    #: Calling it again with the same idempotency key changes nothing more.
    IDEMPOTENT = "idempotent"
    #: It must not happen twice. What a tool is unless it says otherwise.
    ONCE = "once"


#: What becomes of a `once` call in doubt: the model is told that the outcome is unknown, or the run is parked.
InDoubt = Literal["report", "park"]

#: What becomes of an error that a tool raises: the model is told, or the run ends.
OnError = Literal["report", "raise"]


class Completed(msgspec.Struct, frozen=True):
    """Reconciled: the call did its work, and this was its result."""

    result: Any


class Reconciliation(StrEnum):
    """Reconciled, without a result."""

    #: The call never did its work; it is made now.
    NOT_EXECUTED = "did not happen"
    #: It cannot be found out; the tool's in-doubt policy decides.
    UNKNOWN = "unknown"


NOT_EXECUTED: Final = Reconciliation.NOT_EXECUTED
UNKNOWN: Final = Reconciliation.UNKNOWN

#: Finds out what became of a call, from its identity and arguments.
Reconcile = Callable[[ToolContext], Awaitable[Completed | Reconciliation]]
