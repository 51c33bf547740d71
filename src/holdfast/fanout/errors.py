"""Errors of a fan-out."""

from holdfast.errors import HoldfastError


class FanoutError(HoldfastError):
    """A fan-out could not be started, saved or resumed."""


class CorruptCheckpoint(FanoutError):
    """A fan-out's checkpoint cannot be read. It was not changed."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"the checkpoint {location} cannot be read: {reason}; it was not changed: move it away to start over"
        )
        self.location, self.reason = location, reason


class FanoutMismatch(FanoutError):
    """The checkpoint belongs to another prompt or to other models."""


class FanoutBusy(FanoutError):
    """Another process executes this fan-out."""


class PathRefused(FanoutError):
    """A path leads out of the workspace, or cannot be read or written."""


class WorkspaceChanged(FanoutError):
    """A file changed on disk while a model that had proposed edits to it was interrupted."""
