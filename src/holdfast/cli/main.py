"""Entry point of the `holdfast` command. Reports every error as one line."""

import contextlib
import errno
import io
import logging
import os
import sys
from typing import NoReturn

from holdfast.cli.output import sanitize
from holdfast.core.agents.tool_threads import has_running_threads
from holdfast.root_error import HoldfastError


def main() -> NoReturn:
    """Run the command in `sys.argv` and exit: 0 on success, 1 on failure, 2 on wrong usage.

    If a tool has not returned from its thread, the process exits at once, and with 1 instead of 0: the regular exit of
    the interpreter is not safe beside that thread.
    """
    try:
        _run_program()
    except SystemExit as exc:
        if has_running_threads():
            _exit_hard(exc.code)
        raise


def _run_program() -> NoReturn:
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        _exit_with_message('the command line needs its extra: pip install "holdfast[cli]"', 2)
    from holdfast.cli.output import CommandError, UsageError, format_error, is_debug_enabled
    from holdfast.cli.program import build_program

    _prepare_streams()
    try:
        build_program()(prog_name="holdfast")
        sys.exit(0)
    except UsageError as exc:
        _exit_with_message(str(exc), 2)
    except Exception as exc:  # the user gets one line, not a traceback
        if is_debug_enabled():
            raise
        if isinstance(exc, OSError) and exc.errno == errno.EPIPE:
            _exit_on_broken_pipe()
        hint = " (holdfast --debug shows the traceback)"
        if isinstance(exc, HoldfastError):  # `holdfast explain` knows the name of its class
            hint = "" if isinstance(exc, CommandError) else f" [{type(exc).__name__}]"
        _exit_with_message(format_error(exc) + hint, 1)


def _exit_hard(code: object) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone
            stream.flush()
    os._exit(code if isinstance(code, int) and code else 1)


def _prepare_streams() -> None:
    # If one stream is closed (`2>&-`), its output must not go to the other one.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # replace characters that the terminal cannot show
            stream.reconfigure(errors="replace")


def _exit_with_message(message: str, code: int) -> NoReturn:
    print(f"holdfast: {sanitize(message)}", file=sys.stderr)
    sys.exit(code)


def _exit_on_broken_pipe() -> NoReturn:
    """Exit after the reader of stdout has closed the pipe, without a second error when Python closes stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


if __name__ == "__main__":
    main()
