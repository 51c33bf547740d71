"""Errors of a fan-out."""

from holdfast.root_error import HoldfastError


class FanoutError(HoldfastError):
    """A fan-out could not be started, saved or resumed.

    What to do: The subclass and the message say what to do. Answers that were saved stay saved.
    """


class CorruptCheckpoint(FanoutError):
    """A fan-out's checkpoint cannot be read. It was not changed.

    What to do: Restore the checkpoint from a backup, or start the fan-out under another name.
    """

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"the checkpoint {location} cannot be read: {reason}; it was not changed: move it away to start over"
        )
        self.location = location
        self.reason = reason


class PathRefused(FanoutError):
    """A path leads out of the workspace, or cannot be read or written.

    What to do: Use a path inside the workspace that this process may read and write.
    """


class WorkspaceChanged(FanoutError):
    """A file changed on disk while a model that had proposed edits to it was interrupted.

    What to do: Look at both versions of the file, then resume or start again.
    """
