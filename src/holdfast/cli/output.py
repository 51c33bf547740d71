"""What a command prints: results to stdout, the rest to stderr, and every error as one line."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec

from holdfast.core.json_value import lower_durations
from holdfast.root_error import HoldfastError

if TYPE_CHECKING:
    from rich.console import Console


def print_diagnostic(text: str) -> None:
    """Print a line to stderr."""
    with ignore_broken_pipe(sys.stderr):
        print(sanitize(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def ignore_broken_pipe(stream: IO[str]) -> Iterator[None]:
    """Redirect `stream` to /dev/null once its reader has closed the pipe, as `head` does.

    A run must not fail because its output has no reader.
    """
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


#: Characters with which stored text could change how a terminal shows other text: control characters (C0, DEL, C1),
#: bidirectional controls, line separators, invisible tags and halves of surrogate pairs.
_UNSAFE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
    r"|[\U000e0000-\U000e007f]"
)


def print_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    _write_json_line(msgspec.json.format(encode_json(value), indent=2))


def print_json_line(value: Any) -> None:
    """Print `value` as one line of JSON."""
    _write_json_line(encode_json(value))


def _write_json_line(line: bytes) -> None:
    """Write bytes: JSON is UTF-8 in any locale. Characters unsafe for a terminal are escaped: the value is the same."""
    sys.stdout.flush()
    sys.stdout.buffer.write(_UNSAFE.sub(_escape, line.decode()).encode() + b"\n")
    sys.stdout.buffer.flush()


def _escape(found: re.Match[str]) -> str:
    """Return the JSON escape of one character. In valid JSON, an unsafe character is always within a string."""
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def encode_json(value: Any) -> bytes:
    """Encode any value as JSON. A duration is in seconds. Types without a JSON form are encoded as text."""
    return msgspec.json.encode(lower_durations(value))


def format_value(value: Any) -> str:
    """Format text as it is, other values as JSON."""
    return value if isinstance(value, str) else encode_json(value).decode()


def sanitize(text: str) -> str:
    """Replace characters with which stored text could move the cursor, change colours or reorder other text."""
    return _UNSAFE.sub("\ufffd", text)


def one_line(text: str, length: int) -> str:
    """Format `text` as one line of at most `length` characters."""
    flat = " ".join(sanitize(text).split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def is_interactive(stream: IO[str]) -> bool:
    """Return whether `stream` is a terminal that supports cursor movement."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _make_console(stream: IO[str]) -> "Console":
    from rich.console import Console

    return Console(file=stream, highlight=False)


class Output:
    """Prints lines and tables: styled on a terminal, plain elsewhere."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdout
        self._console = _make_console(self._stream) if is_interactive(self._stream) else None

    @property
    def console(self) -> "Console | None":
        """The terminal's console, or `None`."""
        return self._console

    @property
    def width(self) -> int:
        """The width of the terminal. Elsewhere lines are not cut."""
        return self._console.width if self._console is not None else 1_000_000

    def print_line(self, text: str = "", style: str = "") -> None:
        if self._console is None:
            print(sanitize(text), file=self._stream, flush=True)
            return
        from rich.text import Text

        self._console.print(Text(sanitize(text), style=style), soft_wrap=True)

    def print_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
        """Print a table with a header. The columns in `right` are right-aligned."""
        if self._console is None:
            self._print_plain_table(columns, rows, right)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(sanitize(cell), style=STYLES.get(cell, "")) for cell in row))
        self._console.print(table)

    def _print_plain_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
        cells = [[" ".join(sanitize(cell).split()) for cell in row] for row in rows]
        widths = [max([len(column), *(len(row[at]) for row in cells)]) for at, column in enumerate(columns)]
        for row in [list(columns), *cells]:
            padded = (
                cell.rjust(width) if column in right else cell.ljust(width)
                for column, width, cell in zip(columns, widths, row, strict=True)
            )
            print("  ".join(padded).rstrip(), file=self._stream)
        self._stream.flush()


class Stderr(Output):
    """Prints to stderr, and ignores a closed pipe."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def print_line(self, text: str = "", style: str = "") -> None:
        with ignore_broken_pipe(sys.stderr):
            super().print_line(text, style)


#: Styles of statuses and levels.
STYLES = {
    "running": "green",
    "busy": "green",
    "done": "green",
    "ok": "green",
    "queued": "cyan",
    "waiting": "cyan",
    "interrupted": "yellow",
    "parked": "yellow",
    "in doubt": "bold yellow",
    "needs approval": "bold yellow",
    "needs result": "bold yellow",
    "warning": "yellow",
    "failed": "red",
    "dead": "red",
    "error": "red",
    "wrong": "bold red",
    "cancelled": "dim",
    "idle": "dim",
}


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
