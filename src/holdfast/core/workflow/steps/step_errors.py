"""What a step raises in a workflow, and its stored form: the same exception in every attempt."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.errors import DefinitionError, PayloadError, RunError, format_error
from holdfast.core.json_value import to_json_value
from holdfast.core.redaction import Redact


class StepFailed(RunError):
    """A step of a workflow failed. It is the same in every attempt of the run.

    What to do: Catch it in the workflow if it can continue without the step. Otherwise fix the tool and start a new
    run: a step whose failure is recorded is not repeated.
    """

    def __init__(self, tool: str, type_name: str, message: str, data: Any = None) -> None:
        super().__init__(f"step {tool} failed: {type_name}: {message}")
        self.tool = tool
        #: The name of the exception's class.
        self.type_name = type_name
        self.message = message
        #: The attributes of the exception, if they are plain data.
        self.data = data


class StepTimeout(StepFailed, TimeoutError):
    """A wait of a workflow got no answer in time.

    What to do: Catch it, or `TimeoutError`, and let the workflow continue without the answer.
    """


class StepDenied(StepFailed):
    """A person denied a step of a workflow.

    What to do: Catch it, and let the workflow continue without the step.
    """


class StepCancelled(StepFailed, TimeoutError):
    """The workflow cancelled the step itself in an earlier attempt, by a timeout around it or with its task.

    What to do: Give the tool a `timeout`, or use `first` to wait for the first of several steps.
    """


class AmbiguousStep(DefinitionError):
    """Two tasks of a workflow make the same call with the same arguments: after a crash their results could be swapped.

    What to do: Give each call a key, as `charge.keyed("order-7")(order)`.
    """

    def __init__(self, tool: str) -> None:
        keyed = {"first": "first(KEY, ...)", "saga": "saga(KEY)"}.get(tool, f"{tool}.keyed(KEY)(...)")
        super().__init__(
            f"two tasks of the workflow call {tool} with the same arguments: after a crash the result of one could "
            f"become that of the other. Give each a key, such as {keyed}"
        )
        self.tool = tool


#: `run_cancelled`: not of a step, but of the whole workflow.
StepErrorKind = Literal["raised", "timeout", "denied", "cancelled", "run_cancelled"]

_CLASSES: dict[StepErrorKind, type[StepFailed]] = {
    "raised": StepFailed,
    "timeout": StepTimeout,
    "denied": StepDenied,
    "cancelled": StepCancelled,
    "run_cancelled": StepFailed,
}


class StepError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The error of a step, as it is stored."""

    type_name: str
    message: str
    kind: StepErrorKind = "raised"
    #: The class among the `errors` of the tool, and the arguments of that exception.
    known_as: str = ""
    args: list[Any] = []
    data: Any = None

    @classmethod
    def from_exception(cls, error: BaseException, known: Sequence[type[Exception]]) -> "StepError":
        """Return the stored form of an exception.

        Args:
            known: the classes that the workflow gets as they are.
        """
        type_name, _, message = format_error(error).partition(": ")
        found = next((each for each in known if isinstance(error, each)), None)
        args = _to_plain(list(error.args))
        if found is not None and (args is None or _make(found, args) is None):
            found = None
        return cls(
            type_name=type_name,
            message=message,
            known_as="" if found is None else found.__name__,
            args=args if found is not None and args is not None else [],
            data=_to_plain({name: value for name, value in vars(error).items() if not name.startswith("_")}) or None,
        )

    @classmethod
    def from_content(cls, content: Any) -> "StepError":
        """Return the error from the content of a result. That of a person's is text."""
        try:
            return msgspec.convert(content, cls)
        except msgspec.ValidationError:
            return cls(type_name="Error", message=str(content))

    def redact(self, redact: Redact) -> "StepError":
        """Return the error without what `redact` removes. Its class and its kind stay: they decide what is raised."""
        message, args, data = redact(self.message), redact(self.args), redact(self.data)
        return msgspec.structs.replace(self, message=message, args=args, data=data)

    def to_exception(self, tool: str, known: Sequence[type[Exception]]) -> Exception:
        """Return the exception that the workflow gets."""
        for each in known:
            if each.__name__ == self.known_as and (made := _make(each, self.args)) is not None:
                return made
        return _CLASSES[self.kind](tool, self.type_name, self.message, self.data)


def _make(kind: type[Exception], args: list[Any]) -> Exception | None:
    try:
        return kind(*args)
    except Exception:  # user code may raise anything: its class may need other arguments
        return None


def _to_plain(value: Any) -> Any:
    try:
        return to_json_value(value, "the error")
    except PayloadError:
        return None
