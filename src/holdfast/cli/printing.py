"""Events, transcripts and waiting calls as lines of text."""

import shlex
import sys
from datetime import datetime
from typing import Self

from holdfast.cli.output import STYLES, Output, format_value, one_line
from holdfast.core.run.run_events import (
    CallDecided,
    ChildFinished,
    ChildStarted,
    CustomEvent,
    ErrorRecorded,
    Event,
    MessageAdded,
    OutputRecorded,
    PhaseFinished,
    ReplyAdded,
    RetryScheduled,
    StepFinished,
    ToolCalled,
    ToolReturned,
    TurnFinished,
    TurnStarted,
)
from holdfast.core.run.waiting import WaitingCall, describe_decision
from holdfast.db.urls import redact_url
from holdfast.runtime.operations.verdicts import Verdict
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.transcript import CallRecord, TranscriptItem

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
            took = f", {formatting.format_duration(item.at - self._last_step_at)}"
        used = f", {formatting.format_number(tokens - self._tokens)} tokens" if tokens > self._tokens else ""
        spent = f", {formatting.format_cost(item.usage.cost_usd)} so far" if item.usage.cost_usd else ""
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
                edited = call.original_arguments is not None
                asked = f", instead of {format_value(call.original_arguments)}" if edited else ""
                decided = describe_decision(call.decision)
                self._output.print_line(f"    {self._truncate(decided)}{at}{self._truncate(asked)}", "dim")

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


def format_call(call: CallRecord, *, full: bool = False) -> str:
    """Format a call, such as `pay(amount=3) once c7`. Long arguments are truncated unless `full`."""
    if isinstance(call.arguments, dict):
        length = sys.maxsize if full else _MAX_ARGUMENT_LENGTH
        arguments = ", ".join(
            f"{name}={one_line(format_value(value), length)}" for name, value in call.arguments.items()
        )
    else:
        arguments = one_line(format_value(call.arguments), sys.maxsize if full else _MAX_CONTENT_LENGTH)
    return f"{call.tool}({arguments}) {call.effect + ' ' if call.effect else ''}{call.call_id}"


def format_pick(pick: Verdict) -> str:
    """Format what was picked, by whom and when."""
    by = f" by {pick.by}" if pick.by else ""
    return f"{pick.value}{by}, {format_time(pick.at)}"


def format_time(at: datetime) -> str:
    """Format a time in the local time zone, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


class EventPrinter:
    """Prints events as a transcript. Events that describe the present, and drafts, are not printed."""

    def __init__(self, output: Output, *, full: bool = False) -> None:
        """Print to `output`. Long texts are truncated unless `full`."""
        self._output, self._full = output, full
        self._transcript = TranscriptPrinter(output, full=full)

    def print_event(self, event: Event) -> None:
        if (item := _to_item(event)) is not None:
            self._transcript.print_item(item)
        elif (line := self._format_event(event)) is not None:
            self._output.print_line(*line)

    def _format_event(self, event: Event) -> tuple[str, str] | None:
        """Return the line for an event that is no part of a transcript, and its style."""
        match event:
            case ToolCalled():
                call = CallRecord(
                    call_id=event.call_id, tool=event.tool, arguments=event.arguments, state="running", result=None
                )
                return f"  {format_call(call, full=self._full)}", "blue"
            case RetryScheduled():
                pause = formatting.format_duration(event.delay)
                what = f"{event.tool} {event.call_id}" if event.tool else "the model"
                return f"  try {event.attempt} of {what} failed, next in {pause}: {event.error}", "yellow"
            case CallDecided():
                by = f" by {event.decision.by}" if event.decision.by else ""
                return f"  {event.tool} {event.call_id} answered{by}: {event.decision.kind}", "cyan"
            case ChildStarted():
                return f"  {event.call_id} started run {event.child_run_id} of {event.agent}", "dim"
            case ChildFinished():
                return f"  run {event.child_run_id} is {event.status}", "dim"
            case CustomEvent():
                return f"  {event.name}: {event.value}", "dim"
        return None


def _to_item(event: Event) -> TranscriptItem | None:
    match event:
        case MessageAdded() if isinstance(event.content, str):
            return TranscriptItem(seq=0, kind=event.role, text=event.content)
        case MessageAdded():
            return TranscriptItem(seq=0, kind="message", content=event.content)
        case ReplyAdded() if event.text:
            return TranscriptItem(seq=0, kind="reply", text=event.text)
        case ToolReturned():
            return TranscriptItem(
                seq=0,
                kind="result",
                call_id=event.call_id,
                tool=event.tool,
                content=event.content,
                error=event.error,
            )
        case StepFinished():
            return TranscriptItem(
                seq=0, kind="step", step=event.step, at=event.at, usage=event.usage, retries=event.retries
            )
        case TurnStarted():
            return TranscriptItem(seq=0, kind="input", text=event.turn_id, step=event.number, at=event.at)
        case TurnFinished():
            is_error = event.status != "done"
            return TranscriptItem(
                seq=0, kind="turn", step=event.number, content=event.output, text=event.error, error=is_error
            )
        case PhaseFinished():
            return TranscriptItem(seq=0, kind="phase", text=event.name, content=event.output)
        case OutputRecorded():
            return TranscriptItem(seq=0, kind="outcome", content=event.output)
        case ErrorRecorded():
            return TranscriptItem(seq=0, kind="outcome", text=event.error, error=True)
    return None


class PrintedCall(CallRecord, kw_only=True, omit_defaults=False):
    """A call that waits. `--json` prints these fields."""

    #: The command that answers the call. Empty for a timer.
    command: str = ""

    @classmethod
    def make(cls, call: WaitingCall, store: str) -> Self:
        printed = cls.from_wait(call)
        printed.command = format_answer_command(call, store)
        return printed

    @property
    def action(self) -> str:
        """What `command` does."""
        return {"approval": "approve", "signal": "signal"}.get(self.kind or "", "answer")


def format_answer_command(call: WaitingCall, store: str) -> str:
    """Return the command that ends the wait of a call; empty for a timer."""
    match call.kind:
        case "approval":
            return format_command("approve", store, call.run_id, call.call_id)
        case "question" | "result":
            return format_command("answer", store, call.run_id, call.call_id, "VALUE")
        case "signal":
            return format_command("signal", store, call.run_id, call.topic.partition(":")[2], "JSON")
    return ""


def format_command(name: str, store: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Return a command as the user types it."""
    store_option = ["--store", redact_url(store)] if store else []
    if any(argument.startswith("-") for argument in arguments):  # such as a run id that looks like an option
        return shlex.join(["holdfast", name, *options, *store_option, "--", *arguments])
    return shlex.join(["holdfast", name, *options, *arguments, *store_option])
