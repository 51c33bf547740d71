"""What can go wrong in a run. The whole tree is drawn in `holdfast.errors`."""

from datetime import timedelta

from holdfast.errors import HoldfastError


class RunError(HoldfastError):
    """A run could not be started, or ended otherwise than with an answer."""


class InvalidRunId(RunError):
    """The run id cannot be used."""


class RunAlreadyRunning(RunError):
    """This executor drives a run with this id at the moment."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} is live in this process: await that one, or choose another id")
        self.run_id = run_id


class NotDurable(RunError):
    """The run was refused because it could not be made durable, and the host requires that."""


class DefinitionError(RunError):
    """An agent, a tool or a phase was put together in a way that cannot work."""


class UnknownTool(DefinitionError):
    """A tool is named that the agent does not have."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no tool {name!r}: known are {', '.join(known) or 'none'}")
        self.name, self.known = name, known


class InvalidReply(RunError):
    """The model callable returned something that is not a `Reply`, or one that contradicts itself."""


class PayloadError(RunError):
    """A value cannot be stored without changing it. What was saved before is still there."""


class BoundExceeded(RunError):
    """The run reached a bound of its agent. Raise the bound to let such runs go on for longer."""


class StepsExceeded(BoundExceeded):
    """The run took as many steps as its agent may take."""

    def __init__(self, run_id: str, bound: int) -> None:
        super().__init__(f"run {run_id} took its {bound} iterations without an answer: raise max_steps if it may")
        self.run_id, self.bound = run_id, bound


class RuntimeExceeded(BoundExceeded):
    """The run was driven for as long as its agent may take. Time spent interrupted does not count."""

    def __init__(self, run_id: str, bound: timedelta) -> None:
        super().__init__(f"run {run_id} ran for its {bound} without an answer: raise max_runtime if it may")
        self.run_id, self.bound = run_id, bound


class RepeatedToolCalls(BoundExceeded):
    """The model asked for the same tool with the same arguments again and again."""

    def __init__(self, run_id: str, tool: str, times: int) -> None:
        super().__init__(f"run {run_id} called {tool} {times} times in a row with the same arguments: it is stuck")
        self.run_id, self.tool, self.times = run_id, tool, times


class ToolFailed(RunError):
    """A tool that ends the run on an error raised one. The error is the cause of this one."""

    def __init__(self, tool: str, error: BaseException) -> None:
        super().__init__(f"tool {tool} failed and says that this ends the run: {format_error(error)}")
        self.tool = tool


class RunKilled(RunError):
    """Something that watches the run ended it."""


class RunCancelled(RunError):
    """Somebody asked for the run to be cancelled."""


class RunFailed(RunError):
    """The run failed, in another process or earlier: what is known of it is the text of its error."""


class RunParked(RunError):
    """The run waits for a person or a condition. Its checkpoint is kept; it goes on when it is unparked."""

    def __init__(self, reason: str, detail: str = "") -> None:
        #: What is kept with the run, and shown.
        self.message = f"{reason}: {detail}" if detail else reason
        super().__init__(f"parked, {self.message}")
        #: In a word or two: `approval`, `in doubt`, `poison`, `budget`, `size`, ...
        self.reason = reason
        self.detail = detail


class RunInterrupted(RunError):
    """The run stopped before its end and its checkpoint is kept: recovery goes on with it."""

    #: Recovery leaves the run alone for so long.
    retry_after = timedelta(0)


class Shutdown(RunInterrupted):
    """The host shuts down. The run goes on when somebody recovers it."""


class MissingDefinition(RunInterrupted):
    """The saved run needs what this process does not have: a tool, a phase, its agent. It is left for one that does."""

    retry_after = timedelta(minutes=1)


class SaveFailed(RunInterrupted):
    """The run cannot go on because its store does not take what it must not go on without."""

    retry_after = timedelta(seconds=5)


class ModelUnavailable(RunInterrupted):
    """The model's provider does not answer, or not now. Nothing is wrong with the run: it goes on when it does."""

    def __init__(self, message: str, retry_after: timedelta = timedelta(seconds=30)) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ShuttingDown(RunInterrupted):
    """The executor is shutting down and takes no new runs."""


class RunLost(RunError):
    """This process does not own the run any more: stop, and write nothing about it."""


def format_error(error: BaseException) -> str:
    """The error's kind and text, as any store or model can take it: no half surrogate pairs. Raises nothing."""
    try:
        text = str(error)
    except Exception:  # the class is somebody else's
        text = "(its text could not be made)"
    return f"{type(error).__name__}: {text}".encode(errors="replace").decode()
