"""How a run ends, and what that means for its checkpoint."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.core.errors import RunInterrupted, RunLost, RunParked
from holdfast.core.message import Usage
from holdfast.core.state import History, PhaseOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run that succeeded gives."""

    run_id: str
    output: Any
    usage: Usage
    steps: int
    phases: tuple[PhaseOutput, ...] = ()
    #: The conversation; of the last phase, if there were phases.
    messages: History | tuple[Any, ...] = ()


class CheckpointAction(StrEnum):
    """What is done to the checkpoint of a run that has ended."""

    #: It is removed; or its result is kept for whoever asked for it.
    COMPLETE = "complete"
    #: It stays, unowned: recovery goes on with the run.
    INTERRUPT = "leave"
    #: It stays, and waits for a person or a condition.
    PARK = "park"
    #: It is no recovery candidate any more.
    FAIL = "fail"
    #: Somebody else owns it: hands off.
    NONE = "abandon"


def classify_error(
    error: BaseException | None, shutdown_exceptions: tuple[type[BaseException], ...] = ()
) -> CheckpointAction:
    """What becomes of the checkpoint of a run that ended with `error`, or with none.

    Args:
        shutdown_exceptions: exceptions by which the host says that it shuts down.
    """
    if error is None:
        return CheckpointAction.COMPLETE
    if isinstance(error, RunLost):
        return CheckpointAction.NONE
    if isinstance(error, RunParked):
        return CheckpointAction.PARK
    if isinstance(error, (RunInterrupted, KeyboardInterrupt, SystemExit, *shutdown_exceptions)):
        return CheckpointAction.INTERRUPT
    return CheckpointAction.FAIL
