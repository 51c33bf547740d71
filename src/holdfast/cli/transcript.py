"""Prints a transcript."""

import sys
from datetime import datetime

from holdfast.cli import formatting
from holdfast.cli.output import STYLES, Output, format_value, one_line
from holdfast.core.waiting import describe_decision
from holdfast.runtime.picks import Pick
from holdfast.runtime.transcript import Call, TranscriptItem

_MAX_TEXT_LENGTH = 2_000
_MAX_CONTENT_LENGTH = 160
_MAX_ARGUMENT_LENGTH = 60


class TranscriptPrinter:
    """Prints a transcript item by item."""

    def __init__(self, output: Output, *, full: bool = False) -> None:
        """Print to `output`. Long texts are truncated unless `full`."""
        self._output, self._full = output, full
        self._last_step_at: datetime | None = None
        self._tokens = 0
        self._retries = 0

    def print_item(self, item: TranscriptItem) -> None:
        match item.kind:
            case "begin":
                return
            case "step":
                self._print_step(item)
            case "phase":
                self._output.print_line(f"phase {item.text}: {self._truncate(format_value(item.content))}", "bold")
            case "reply":
                self._print_reply(item)
            case "result" | "resolution":
                self._print_result(item)
            case "outcome":
                line = f"error: {item.text}" if item.error else f"answer: {self._truncate(format_value(item.content))}"
                self._output.print_line(line, "red" if item.error else "bold green")
            case "input":
                self._output.print_line(f"=== turn {item.step} ({item.text})", "bold")
            case "turn":
                if item.error:
                    self._output.print_line(f"turn {item.step} ended without an answer: {item.text}", "red")
            case "message":
                self._output.print_line(self._truncate(format_value(item.content)))
            case _:
                self._output.print_line(
                    f"{item.kind}: {self._truncate(item.text)}", "cyan" if item.kind == "user" else "dim"
                )

    def _print_step(self, item: TranscriptItem) -> None:
        took, tokens = "", item.usage.total_tokens
        if item.at is not None and self._last_step_at is not None:
            took = f", {formatting.duration(item.at - self._last_step_at)}"
        used = f", {formatting.number(tokens - self._tokens)} tokens" if tokens > self._tokens else ""
        spent = f", {formatting.cost(item.usage.cost_usd)} so far" if item.usage.cost_usd else ""
        at = f" at {format_time(item.at)}" if item.at is not None else ""
        retries = item.retries - self._retries
        retried = f", {retries} {'retry' if retries == 1 else 'retries'}" if retries > 0 else ""
        self._last_step_at, self._tokens, self._retries = item.at, tokens, item.retries
        self._output.print_line(f"--- step {item.step} finished{at}{took}{used}{retried}{spent}", "dim")

    def _print_reply(self, item: TranscriptItem) -> None:
        if item.text or not item.calls:
            self._output.print_line(f"model: {self._truncate(item.text)}")
        for call in item.calls:
            self._output.print_line(f"  {format_call(call)}", "blue")
            if call.decision is not None:
                at = f" at {format_time(call.decision.at)}" if call.decision.at is not None else ""
                self._output.print_line(f"    {self._truncate(describe_decision(call.decision))}{at}", "dim")

    def _print_result(self, item: TranscriptItem) -> None:
        state = "error" if item.error else "resolved by a person" if item.kind == "resolution" else "done"
        name = f"{item.tool} " if item.tool else ""
        self._output.print_line(
            f"  {name}{item.call_id} {state}: {self._format_content(item.content)}", STYLES.get(state, "")
        )

    def _truncate(self, text: str) -> str:
        if self._full or len(text) <= _MAX_TEXT_LENGTH:
            return text
        return f"{text[:_MAX_TEXT_LENGTH]}… ({len(text)} characters: --full)"

    def _format_content(self, content: object) -> str:
        return format_value(content) if self._full else one_line(format_value(content), _MAX_CONTENT_LENGTH)


def format_call(call: Call, *, full: bool = False) -> str:
    """Format a call, such as `pay(amount=3) once c7`. Long arguments are truncated unless `full`."""
    if isinstance(call.arguments, dict):
        length = sys.maxsize if full else _MAX_ARGUMENT_LENGTH
        arguments = ", ".join(
            f"{name}={one_line(format_value(value), length)}" for name, value in call.arguments.items()
        )
    else:
        arguments = one_line(format_value(call.arguments), sys.maxsize if full else _MAX_CONTENT_LENGTH)
    return f"{call.tool}({arguments}) {call.effect + ' ' if call.effect else ''}{call.call_id}"


def format_pick(pick: Pick) -> str:
    """Format what was picked, by whom and when."""
    by = f" by {pick.by}" if pick.by else ""
    return f"{pick.result}{by}, {format_time(pick.at)}"


def format_time(at: datetime) -> str:
    """Format a time in the local time zone, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
