"""The result of a run, and the action on its checkpoint for each way it can end."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic

from holdfast.core.errors import RunInterrupted, RunLost, RunParked
from holdfast.core.run.messages import Usage
from holdfast.core.run.state import History, PhaseOutput
from holdfast.core.run.waiting import RunWaiting

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    #: The type of an agent's output. A type checker takes `Result` without a parameter as `Result[Any]`.
    OutputT = TypeVar("OutputT", default=Any)
    OutputT_co = TypeVar("OutputT_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    OutputT = TypeVar("OutputT")
    OutputT_co = TypeVar("OutputT_co", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Result(Generic[OutputT_co]):
    """The result of a run that succeeded."""

    run_id: str
    output: OutputT_co
    usage: Usage
    steps: int
    phases: tuple[PhaseOutput, ...] = ()
    #: The conversation; of the last phase, if there were phases.
    messages: History | tuple[Any, ...] = ()


class CheckpointAction(StrEnum):
    """The action on the checkpoint of a run that has ended."""

    #: It is kept with the result for its retention, or removed if that is zero.
    COMPLETE = "complete"
    #: It stays, without an owner: recovery resumes the run.
    INTERRUPT = "leave"
    #: It stays, and waits for a time or for mail.
    WAIT = "wait"
    #: It stays, and waits for a person or a condition.
    PARK = "park"
    #: It is marked failed: recovery ignores it.
    FAIL = "fail"
    #: Another worker owns it: nothing is written.
    NONE = "abandon"


def classify_error(
    error: BaseException | None, shutdown_exceptions: tuple[type[BaseException], ...] = ()
) -> CheckpointAction:
    """Return the action for a run that ended with `error`, or with none.

    Args:
        shutdown_exceptions: exceptions by which the host announces a shutdown. One of them as the cause of `error`, or
            within an exception group, announces it too.
    """
    if error is None:
        return CheckpointAction.COMPLETE
    if isinstance(error, RunLost):
        return CheckpointAction.NONE
    if isinstance(error, RunWaiting):
        return CheckpointAction.WAIT
    if isinstance(error, RunParked):
        return CheckpointAction.PARK
    if isinstance(error, RunInterrupted | KeyboardInterrupt | SystemExit):
        return CheckpointAction.INTERRUPT
    if shutdown_exceptions and _contains(error, shutdown_exceptions):
        return CheckpointAction.INTERRUPT
    return CheckpointAction.FAIL


def _contains(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether `error`, an exception of its group, or a cause of one of them is of these kinds."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, kinds):
            return True
        seen.add(id(each))
        left.append(each.__cause__)
        if isinstance(each, BaseExceptionGroup):
            left.extend(each.exceptions)
    return False
