"""Printing: results to stdout, talk to stderr; styled on a terminal, plain elsewhere."""

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


def print_diagnostic(text: str) -> None:
    """Tell the user something that is not the result."""
    with ignore_broken_pipe(sys.stderr):
        print(sanitize(text), file=sys.stderr, flush=True)


@contextlib.contextmanager
def ignore_broken_pipe(stream: IO[str]) -> Iterator[None]:
    """Write to a stream whose reader may have gone, as `head` does. From then on what is written to it goes nowhere.

    No run may end because nobody watches it any more.
    """
    try:
        yield
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_json(value: Any) -> None:
    """`value` as indented JSON, for people with `jq`."""
    _write_json_line(msgspec.json.format(encode_json(value), indent=2))


def print_json_line(value: Any) -> None:
    """`value` as JSON in one line, so that each line of a stream is a whole."""
    _write_json_line(encode_json(value))


def _write_json_line(line: bytes) -> None:
    """JSON is UTF-8, whatever the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def encode_json(value: Any) -> bytes:
    """Any value as JSON; what has no JSON form, as text."""
    return msgspec.json.encode(value, enc_hook=str)


def format_value(value: Any) -> str:
    """Text as it is, other values as JSON."""
    return value if isinstance(value, str) else encode_json(value).decode()


def sanitize(text: str) -> str:
    """`text` without what could move the cursor or change colours: stored text comes from models and tools."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") else "\ufffd" for char in text
    )


def one_line(text: str, length: int) -> str:
    """`text` in one line of at most `length` characters."""
    flat = " ".join(sanitize(text).split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def is_interactive(stream: IO[str]) -> bool:
    """Whether somebody watches `stream` on a terminal that can do more than print lines."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _make_console(stream: IO[str]) -> "Console":
    from rich.console import Console

    return Console(file=stream, highlight=False)


class Output:
    """Takes lines and tables, and prints them as fits the stream it is for."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdout
        self._console = _make_console(self._stream) if is_interactive(self._stream) else None

    @property
    def console(self) -> "Console | None":
        """For what only a terminal can show; `None` if there is none."""
        return self._console

    @property
    def width(self) -> int:
        """How long a line should be at most. Without a terminal there is no need to cut anything."""
        return self._console.width if self._console is not None else 1_000_000

    def print_line(self, text: str = "", style: str = "") -> None:
        if self._console is None:
            print(sanitize(text), file=self._stream, flush=True)
            return
        from rich.text import Text

        self._console.print(Text(sanitize(text), style=style), soft_wrap=True)

    def print_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
        """A table with a head. Columns named in `right` hold numbers."""
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
            print("  ".join(padded).rstrip(), file=self._stream, flush=True)


class Stderr(Output):
    """Lines on stderr, which nobody has to read."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def print_line(self, text: str = "", style: str = "") -> None:
        with ignore_broken_pipe(sys.stderr):
            super().print_line(text, style)


#: How words that say how something stands are shown.
STYLES = {
    "running": "green",
    "done": "green",
    "ok": "green",
    "queued": "cyan",
    "interrupted": "yellow",
    "parked": "yellow",
    "in doubt": "bold yellow",
    "warning": "yellow",
    "failed": "red",
    "error": "red",
    "wrong": "bold red",
    "cancelled": "dim",
}
