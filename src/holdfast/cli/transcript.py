"""Transcript: the readable items of a journal (messages, calls, steps), and their printed form.

It needs no agent's code. Messages of unknown loops stay JSON.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.checkpoint.codec import Begin, Outcome, Progress, RecordedResult, Step, decode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.cli import formatting
from holdfast.cli.output import STYLES, Output, format_value, one_line
from holdfast.core.execution.attempts import RETRY_KEY
from holdfast.core.message import NATIVE_CODEC, Reply, System, ToolCall, ToolResult, User
from holdfast.core.state import PhaseOutput

CallState = Literal["done", "error", "running", "in doubt", "open"]


class Call(msgspec.Struct, kw_only=True):
    """A tool call and its result."""

    call_id: str
    tool: str
    arguments: Any
    #: The tool's effect; `None` without the agent's code.
    effect: str | None = None
    #: Without a result: `running` if a live worker executes the run, `open` if the run is terminal, else `in doubt`.
    state: CallState = "open"
    result: Any = None


class TranscriptItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One readable entry of the journal."""

    seq: int
    kind: Literal["begin", "system", "user", "reply", "result", "message", "step", "phase", "outcome"]
    text: str = ""
    #: Of a reply.
    calls: list[Call] = []
    #: Of a result: the call it answers, the tool and whether it is an error.
    call_id: str = ""
    tool: str = ""
    error: bool = False
    #: A result's content, an unknown message, a phase's or the run's output.
    content: Any = None
    #: Of a step: its number, the time it finished, and the run's usage at that time.
    step: int = 0
    at: datetime | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    #: Of a step: the run's retries at that time.
    retries: int = 0


class Transcript:
    """Reads a run's entries in order and collects its calls. Can be continued with later entries."""

    def __init__(self, effects: Mapping[str, str] | None = None) -> None:
        """Start empty. `effects` are the known effects of the tools, by name."""
        self._effects = effects or {}
        self.calls: list[Call] = []
        #: The latest call of each id: ids are unique only within a reply.
        self._calls_by_id: dict[str, Call] = {}

    def read(self, entries: Iterable[Entry]) -> list[TranscriptItem]:
        """Return the items of the next entries. ADOPT entries have none: they refer to earlier results."""
        return [item for entry in entries if (item := self._read_entry(entry)) is not None]

    @property
    def unanswered(self) -> list[Call]:
        """Calls without a result."""
        return [call for call in self.calls if call.state not in ("done", "error")]

    def close(self, *, owner_alive: bool, terminal: bool) -> None:
        """Set the state of the calls without a result, after the last entry."""
        for call in self.unanswered:
            call.state = "running" if owner_alive else "open" if terminal else "in doubt"

    def _read_entry(self, entry: Entry) -> TranscriptItem | None:
        match entry.kind:
            case EntryKind.BEGIN:
                return TranscriptItem(seq=entry.seq, kind="begin", text=decode(entry.body, Begin).meta.prompt)
            case EntryKind.MESSAGE:
                return self._read_message(entry.seq, entry.body)
            case EntryKind.RESULT:
                recorded = decode(entry.body, RecordedResult)
                return self._read_message(entry.seq, bytes(recorded.message), recorded.call)
            case EntryKind.STEP:
                return _read_step(entry)
            case EntryKind.PHASE:
                phase = decode(entry.body, PhaseOutput)
                return TranscriptItem(
                    seq=entry.seq, kind="phase", text=phase.name, content=phase.output, step=phase.steps
                )
            case EntryKind.OUTCOME:
                outcome = decode(entry.body, Outcome)
                error = outcome.error or ""
                return TranscriptItem(
                    seq=entry.seq, kind="outcome", content=outcome.output, text=error, error=bool(error)
                )
            case EntryKind.ADOPT:
                return None

    def _read_message(self, seq: int, body: bytes, call_id: str = "") -> TranscriptItem:
        try:
            message = NATIVE_CODEC.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._read_unknown_message(seq, body, call_id)
        match message:
            case System(text):
                return TranscriptItem(seq=seq, kind="system", text=text)
            case User(text):
                return TranscriptItem(seq=seq, kind="user", text=text)
            case Reply():
                return TranscriptItem(
                    seq=seq,
                    kind="reply",
                    text=message.text,
                    calls=[self._record_call(each) for each in message.tool_calls],
                )
            case ToolResult():
                self._record_result(message.call_id, message.content, error=message.error)
                return TranscriptItem(
                    seq=seq,
                    kind="result",
                    call_id=message.call_id,
                    tool=message.tool,
                    content=message.content,
                    error=message.error,
                )
        raise AssertionError(f"the native codec returned a {type(message).__name__}")

    def _read_unknown_message(self, seq: int, body: bytes, call_id: str) -> TranscriptItem:
        """Read a message of another loop."""
        try:
            content = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            content = body.decode(errors="replace")
        if call_id:
            self._record_result(call_id, content)
        return TranscriptItem(seq=seq, kind="result" if call_id else "message", call_id=call_id, content=content)

    def _record_call(self, request: ToolCall) -> Call:
        call = Call(
            call_id=request.id,
            tool=request.name,
            arguments=request.arguments,
            effect=self._effects.get(request.name),
        )
        self.calls.append(call)
        self._calls_by_id[call.call_id] = call
        return call

    def _record_result(self, call_id: str, content: Any, *, error: bool = False) -> None:
        if call := self._calls_by_id.get(call_id):
            call.state = "error" if error else "done"
            call.result = content


def _read_step(entry: Entry) -> TranscriptItem:
    step = decode(entry.body, Step)
    progress = decode(bytes(step.progress), Progress)
    usage = progress.usage
    return TranscriptItem(
        seq=entry.seq,
        kind="step",
        step=progress.steps,
        at=step.at,
        tokens=usage.total_tokens,
        cost_usd=usage.cost_usd,
        retries=progress.annotations.get(RETRY_KEY, {}).get("count", 0),
    )


_MAX_TEXT_LENGTH = 2_000
_MAX_CONTENT_LENGTH = 160


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
            case "result":
                state = "error" if item.error else "done"
                name = f"{item.tool} " if item.tool else ""
                self._output.print_line(
                    f"  {name}{item.call_id} {state}: {self._format_content(item.content)}", STYLES[state]
                )
            case "outcome":
                line = f"failed: {item.text}" if item.error else f"answer: {self._truncate(format_value(item.content))}"
                self._output.print_line(line, "red" if item.error else "bold green")
            case "message":
                self._output.print_line(self._truncate(format_value(item.content)))
            case _:
                self._output.print_line(
                    f"{item.kind}: {self._truncate(item.text)}", "cyan" if item.kind == "user" else "dim"
                )

    def _print_step(self, item: TranscriptItem) -> None:
        took = ""
        if item.at is not None and self._last_step_at is not None:
            took = f", {formatting.duration(item.at - self._last_step_at)}"
        used = f", {formatting.number(item.tokens - self._tokens)} tokens" if item.tokens > self._tokens else ""
        spent = f", {formatting.cost(item.cost_usd)} so far" if item.cost_usd else ""
        at = f" at {format_time(item.at)}" if item.at is not None else ""
        retries = item.retries - self._retries
        retried = f", {retries} {'retry' if retries == 1 else 'retries'}" if retries > 0 else ""
        self._last_step_at, self._tokens, self._retries = item.at, item.tokens, item.retries
        self._output.print_line(f"--- step {item.step} finished{at}{took}{used}{retried}{spent}", "dim")

    def _print_reply(self, item: TranscriptItem) -> None:
        if item.text or not item.calls:
            self._output.print_line(f"model: {self._truncate(item.text)}")
        for call in item.calls:
            self._output.print_line(f"  {format_call(call)}", "blue")

    def _truncate(self, text: str) -> str:
        if self._full or len(text) <= _MAX_TEXT_LENGTH:
            return text
        return f"{text[:_MAX_TEXT_LENGTH]}… ({len(text)} characters: --full)"

    def _format_content(self, content: object) -> str:
        return format_value(content) if self._full else one_line(format_value(content), _MAX_CONTENT_LENGTH)


def format_call(call: Call) -> str:
    """Format a call, such as `pay(amount=3) once c7`."""
    if isinstance(call.arguments, dict):
        arguments = ", ".join(f"{name}={one_line(format_value(value), 60)}" for name, value in call.arguments.items())
    else:
        arguments = one_line(format_value(call.arguments), _MAX_CONTENT_LENGTH)
    return f"{call.tool}({arguments}) {call.effect + ' ' if call.effect else ''}{call.call_id}"


def format_time(at: datetime) -> str:
    """Format a time in the local time zone, to the second."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
