"""Why a run stops."""

from enum import IntEnum


class StopCause(IntEnum):
    """What stops a run, weakest first. A stronger cause replaces a weaker one; of equal causes the first stands."""

    #: The run continues.
    NONE = 0
    #: A tool call raised an error that fails the run. Its sibling calls are being cancelled.
    CALL_FAILED = 1
    #: A tool call or a child run raised an error that leaves the run resumable. Sibling calls are being cancelled.
    CALL_INTERRUPTED = 2
    #: `RunExecution.stop` was called: by a timer, a critic, a cancelled caller, a newer claim, a shutdown.
    STOPPED = 3


class StopState:
    """The cause and error of a run's stop, and the two requests of a shutdown, which combine with every cause.

    From the first cause on the run is stopping: the error of a call that is cancelled then is not its result.
    """

    __slots__ = ("abandoned", "cause", "draining", "error", "is_stopped")

    def __init__(self) -> None:
        self.cause: StopCause = StopCause.NONE
        #: `None` exactly if the cause is `NONE`.
        self.error: BaseException | None = None
        self.is_stopped: bool = False
        #: The host shuts down: the run stops at its next step boundary.
        self.draining: bool = False
        #: The store did not answer within the timeout of a shutdown: nothing more is written for this run.
        self.abandoned: bool = False

    def record(self, cause: StopCause, error: BaseException) -> bool:
        """Set cause and error if `cause` is stronger than the present one. Return whether it is."""
        if cause <= self.cause:
            return False
        self.cause = cause
        self.error = error
        self.is_stopped = cause is StopCause.STOPPED
        return True
