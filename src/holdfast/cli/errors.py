"""Errors of the commands, and their one-line format."""

import os

from holdfast.errors import HoldfastError

#: Set by `--debug`. Child processes of the command inherit it.
DEBUG_VARIABLE = "HOLDFAST_DEBUG"


class CommandError(HoldfastError):
    """A command failed. Exit code 1.

    What to do: The message says what to change.
    """


class UsageError(CommandError):
    """A command was used wrongly. Exit code 2.

    What to do: The message says what to change; `--help` lists the options.
    """


def is_debug_enabled() -> bool:
    """Return whether the user wants tracebacks."""
    return bool(os.environ.get(DEBUG_VARIABLE))


def format_error(error: BaseException) -> str:
    """Format `error` as one line. Errors of other libraries get their class name as a prefix."""
    text = " ".join(str(error).split())
    if isinstance(error, HoldfastError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
