"""Prints the events of a run as lines."""

from holdfast.cli import formatting
from holdfast.cli.output import Output
from holdfast.cli.transcript import TranscriptPrinter, format_call
from holdfast.core.events import (
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
from holdfast.runtime.transcript import Call, TranscriptItem


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
                call = Call(call_id=event.call_id, tool=event.tool, arguments=event.arguments)
                return f"  {format_call(call, full=self._full)}", "blue"
            case RetryScheduled():
                pause = formatting.duration(event.delay)
                what = f"{event.tool} {event.call_id}" if event.tool else "the model"
                return f"  attempt {event.attempt} of {what} failed, next in {pause}: {event.error}", "yellow"
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
