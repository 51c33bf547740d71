"""What can go wrong with a fan-out."""

from holdfast.errors import HoldfastError


class FanoutError(HoldfastError):
    """A fan-out could not be begun, kept or resumed."""


class CorruptCheckpoint(FanoutError):
    """A fan-out's checkpoint cannot be read. It was left as it is."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"the checkpoint {location} cannot be read: {reason}; it was kept as it is: move it away to start anew"
        )
        self.location, self.reason = location, reason


class FanoutMismatch(FanoutError):
    """The checkpoint is of another prompt, or of other models."""


class FanoutBusy(FanoutError):
    """Another process drives this fan-out."""


class PathRefused(FanoutError):
    """A path leads out of the work folder, or to nothing that can be read or written."""


class WorkspaceChanged(FanoutError):
    """A file was changed on disk while a model that had proposed edits to it was interrupted."""


class RecipeError(FanoutError):
    """A recipe cannot be understood."""
