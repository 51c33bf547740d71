"""What a command can be stopped by, and how it is told in one line."""

import os

from holdfast.errors import HoldfastError

#: Set by `--debug`, so that processes a command starts know it, too.
DEBUG_VARIABLE = "HOLDFAST_DEBUG"


class CommandError(HoldfastError):
    """A command could not do what it was asked. Exit code 1."""


class UsageError(CommandError):
    """A command was asked for something it cannot understand. Exit code 2."""


def is_debug_enabled() -> bool:
    """Whether the user asked for tracebacks."""
    return bool(os.environ.get(DEBUG_VARIABLE))


def format_error(error: BaseException) -> str:
    """`error` in one line: what holdfast says is said as it is, of others' errors the kind is told, too."""
    text = " ".join(str(error).split())
    if isinstance(error, HoldfastError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
