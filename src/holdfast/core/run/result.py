"""The result of a run, and the type of its output."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from holdfast.core.run.messages import Usage
from holdfast.core.run.state import History, PhaseOutput

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
