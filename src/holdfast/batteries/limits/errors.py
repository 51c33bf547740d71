"""Errors of the provider limits."""

from datetime import timedelta

from holdfast.core.errors import RunInterrupted
from holdfast.errors import HoldfastError


class LimitsError(HoldfastError):
    """The settings of the provider limits are invalid.

    What to do: Correct the setting that the message names.
    """


class LimitsUnavailable(LimitsError, RunInterrupted):
    """The database of the provider limits cannot be read or written. The run is interrupted.

    What to do: Make the database reachable: a worker resumes the run.
    """

    retry_after = timedelta(seconds=5)
