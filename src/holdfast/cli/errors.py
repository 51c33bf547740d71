"""What a command can be stopped by, and how it is told in one line."""

import os

from holdfast.errors import HoldfastError

#: Set by `--debug`, so that processes a command starts know it, too.
DEBUG = "HOLDFAST_DEBUG"


class CommandError(HoldfastError):
    """A command could not do what it was asked. Exit code 1."""


class WrongUsage(CommandError):
    """A command was asked for something it cannot understand. Exit code 2."""


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return bool(os.environ.get(DEBUG))


def one_line(error: BaseException) -> str:
    """`error` in one line: what holdfast says is said as it is, of others' errors the kind is told, too."""
    text = " ".join(str(error).split())
    if isinstance(error, HoldfastError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
