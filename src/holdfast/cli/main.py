"""Where the `holdfast` command starts, and where every error of it ends: as one line."""

import errno
import io
import os
import sys
from typing import NoReturn

from holdfast.errors import HoldfastError


def main() -> NoReturn:
    """Run the command that `sys.argv` names, and exit: 0 it went well, 1 it failed, 2 it was used wrongly."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        _exit_with_message('the command line needs its extra: pip install "holdfast[cli]"', 2)
    from holdfast.cli.errors import UsageError, format_error, is_debug_enabled
    from holdfast.cli.program import build_program

    _prepare_streams()
    try:
        build_program()(prog_name="holdfast")
        sys.exit(0)
    except UsageError as exc:
        _exit_with_message(str(exc), 2)
    except Exception as exc:  # whatever it is, a user sees one line of it
        if is_debug_enabled():
            raise
        if isinstance(exc, OSError) and exc.errno == errno.EPIPE:
            _exit_on_broken_pipe()
        hint = "" if isinstance(exc, HoldfastError) else " (holdfast --debug shows where)"
        _exit_with_message(format_error(exc) + hint, 1)


def _prepare_streams() -> None:
    # One that was closed (`2>&-`) must not make the other say what belongs to it.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that a terminal cannot show is no reason to fail
            stream.reconfigure(errors="replace")


def _exit_with_message(message: str, code: int) -> NoReturn:
    print(f"holdfast: {message}", file=sys.stderr)
    sys.exit(code)


def _exit_on_broken_pipe() -> NoReturn:
    """Whoever read our output has gone. Python would complain once more when it closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


if __name__ == "__main__":
    main()
