"""How a run ends, and what that means for its checkpoint."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.run.errors import RunInterrupted, RunLost, RunParked
from holdfast.run.history import History
from holdfast.run.state import PhaseOutput
from holdfast.run.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run that succeeded gives."""

    run_id: str
    output: Any
    usage: Usage
    iterations: int
    phases: tuple[PhaseOutput, ...] = ()
    #: The conversation; of the last phase, if there were phases.
    messages: History | tuple[Any, ...] = ()


class Settlement(StrEnum):
    """What is done to the checkpoint of a run that has ended."""

    #: It is removed; or its result is kept for whoever asked for it.
    COMPLETE = "complete"
    #: It stays, unowned: recovery goes on with the run.
    LEAVE = "leave"
    #: It stays, and waits for a person or a condition.
    PARK = "park"
    #: It is no recovery candidate any more.
    FAIL = "fail"
    #: Somebody else owns it: hands off.
    ABANDON = "abandon"


def settlement(error: BaseException | None, shutdown_types: tuple[type[BaseException], ...] = ()) -> Settlement:
    """What becomes of the checkpoint of a run that ended with `error`, or with none.

    Args:
        shutdown_types: exceptions by which the host says that it shuts down.
    """
    if error is None:
        return Settlement.COMPLETE
    if isinstance(error, RunLost):
        return Settlement.ABANDON
    if isinstance(error, RunParked):
        return Settlement.PARK
    if isinstance(error, (RunInterrupted, KeyboardInterrupt, SystemExit, *shutdown_types)):
        return Settlement.LEAVE
    return Settlement.FAIL
